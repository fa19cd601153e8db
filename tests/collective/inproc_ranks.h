#pragma once

#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/collective/links.h"
#include "csrc/collective/plan_run.h"
#include "csrc/transport/inproc.h"

// All ranks of a group in one thread, over a network that the test turns by hand.
namespace downpour::collective {

class InprocRank final : public LinksUser {
 public:
  // `name`: where it listens.
  InprocRank(transport::InprocNetwork& network, int rank, int world, const std::string& name = "")
      : links_(options(rank, world), *this) {
    listener_ = network.listen(name.empty() ? concat("rank ", rank) : name, links_);
  }
  void connect(transport::InprocNetwork& network) {
    links_.connect([&](int rank, const transport::Hello& hello, transport::Receiver& receiver,
                       const transport::ConnectOptions& terms) {
      return network.connect(concat("rank ", rank), hello, receiver, terms);
    });
  }

  Links& links() { return links_; }
  bool opened() const { return opened_; }
  std::string broken() const { return text_of(why_); }

  void begin(const Call& call, std::uint64_t number) {
    error_.clear();
    run_.emplace(call, PieceHeader{number, call.shape}, links_.options().rank, links_.all());
    advance();
  }
  void drop() { run_.reset(); }
  bool done() const { return !run_; }
  std::string error() const { return error_; }
  int waits_for() const { return run_ ? run_->waits_for() : Step::kNobody; }

  void on_links_open() override { opened_ = true; }
  void on_pieces() override { advance(); }
  void on_message(Link&, std::uint16_t, Bytes, Bytes) override {}
  void on_left(int) override { advance(); }
  void on_broken(std::exception_ptr why) override { why_ = std::move(why); }

 private:
  static LinksOptions options(int rank, int world) {
    LinksOptions options;
    options.group = 77;
    options.rank = rank;
    options.world = world;
    return options;
  }
  void advance() {
    try {
      if (run_ && run_->advance()) {
        run_.reset();
      }
    } catch (const Error& error) {
      error_ = error.what();
      run_.reset();
    }
  }

  Links links_;
  std::unique_ptr<transport::Listener> listener_;
  std::optional<PlanRun> run_;
  bool opened_ = false;
  std::exception_ptr why_;
  std::string error_;
};

class InprocRanks {
 public:
  explicit InprocRanks(int world) {
    for (int rank = 0; rank < world; ++rank) {
      ranks_.push_back(std::make_unique<InprocRank>(network_, rank, world));
    }
    for (const auto& rank : ranks_) {
      rank->connect(network_);
    }
    network_.deliver_all();
  }
  ~InprocRanks() {
    for (const auto& rank : ranks_) {
      rank->links().close();
    }
  }

  int size() const { return static_cast<int>(ranks_.size()); }
  InprocRank& rank(int rank) { return *ranks_[static_cast<std::size_t>(rank)]; }
  transport::InprocNetwork& network() { return network_; }

  // One message of one link after the other, in an order drawn from the seed, until nothing waits.
  void deliver(std::uint32_t seed) {
    std::mt19937 random(seed);
    const int ways = network_.links() * 2;
    for (int idle = 0; ways > 0 && idle < ways;) {
      const int way = static_cast<int>(random() % static_cast<std::uint32_t>(ways));
      if (network_.deliver(way / 2, way % 2)) {
        idle = 0;
      } else {
        idle += nothing_waits() ? ways : 0;
      }
    }
  }

 private:
  bool nothing_waits() const {
    for (int link = 0; link < network_.links(); ++link) {
      if (network_.waiting(link, 0) + network_.waiting(link, 1) > 0) {
        return false;
      }
    }
    return true;
  }

  transport::InprocNetwork network_;
  std::vector<std::unique_ptr<InprocRank>> ranks_;
};

}  // namespace downpour::collective
