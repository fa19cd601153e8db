#pragma once

#include <memory>
#include <string>
#include <vector>

#include "csrc/base/aligned_bytes.h"
#include "csrc/base/random.h"
#include "csrc/ps/client.h"
#include "csrc/ps/declared_losses.h"
#include "csrc/ps/push_ledger.h"
#include "csrc/ps/push_sender.h"
#include "csrc/ps/replay_log.h"
#include "csrc/transport/window.h"

namespace downpour::ps {

// A client's end of one shard: connects again and again, sends what is to be sent as credits allow, takes in the answers.
// Threads: the client's caller's. Blocks: never. Errors: what the connector throws; failures wait in take_failure().
class ShardLink final : public transport::Receiver {
 public:
  struct Terms {
    int shard = 0;
    const Schema& schema;
    std::uint64_t schema_hash = 0;
    const ShardLayout& layout;
    const ClientOptions& options;  // the client's: its incarnation may change
    std::uint32_t wanted_slots = 0;
  };
  ShardLink(const Terms& terms, Connector& connector, PushLedger& ledger, ClientCounters& counters);
  ~ShardLink() override;  // closes first: the connection may still read what it sends

  // ---- the connection --------------------------------------------------------------------------------------------------
  void advance();                                                 // connects when it is time, sends what can be sent
  void start_over();                                              // drops the connection: another incarnation
  bool is_ready() const { return phase_ == Phase::kReady; }       // the shard has said where it stands
  bool is_flowing() const { return is_ready() && initialised_; }  // and takes pushes
  bool is_initialised() const { return initialised_; }
  TimePoint retry_at() const { return phase_ == Phase::kDown ? retry_at_ : TimePoint::max(); }
  std::exception_ptr take_failure();  // a refusal; nullptr: none
  std::string text() const;           // "shard 1 at 127.0.0.1:4000 (tcp)", and what is wrong with it
  std::string medium() const;

  // ---- initial values --------------------------------------------------------------------------------------------------
  void offer(const std::function<void(const Slice&, std::byte* to)>& copy, std::span<const double> accumulators);

  // ---- pushes ----------------------------------------------------------------------------------------------------------
  bool can_begin() const;
  void begin(std::uint64_t push, std::uint64_t lease);
  bool has(std::size_t slice) { return log_.newest().header.present[slice]; }
  void add(std::size_t slice, const std::byte* gradient);
  bool wants_attention() const;  // something waits for credits or for the kernel
  void end(std::span<const Hyper> groups);
  void abandon();
  bool has_handed_over();  // all that ended is out of our hands, or the shard is away
  void keep_base_version();
  void save();  // asks for a snapshot, on every connection again until there is one
  bool is_saved() const { return log_.is_empty(); }
  bool has_saved() const { return is_saved() || not_saved_; }  // or cannot

  // ---- pulls -----------------------------------------------------------------------------------------------------------
  void begin_pull();
  void cancel_pull() { pulling_ = false; }
  bool adopt(const Client::Adopt& adopt);  // hands out what has arrived; true when that was all there is
  void finish_pull();

  void on_open(transport::Connection& connection, const transport::Welcome& welcome) override;
  void on_message(transport::Connection& connection, const transport::Message& message) override;
  void on_closed(transport::Connection& connection, std::exception_ptr why) override;

 private:
  enum class Phase { kDown, kConnecting, kGreeted, kReady };

  void connect();
  void fail(const std::exception_ptr& why);
  void back_off();
  void settle_in(const ShardWelcome& welcome);
  void resume();
  void on_state(const ShardState& state);
  void on_initialised();
  void on_ack(const Ack& ack);
  void on_durable(const Durable& durable);
  void on_values(const transport::Message& message);

  void pump();
  void pump_offer();
  void pump_pushes();
  void pump_pull();
  void pump_save();
  bool may_send(const ReplayRecord& record) const;
  void send(const PushSender::Fragment& fragment);
  void send_resume(std::uint64_t sequence);
  std::uint64_t first_undecided();
  bool may_take_credit() const { return connection_->credits() > 0; }

  Terms terms_;
  Connector& connector_;
  PushLedger& ledger_;
  ClientCounters& counters_;
  ReplayLog log_;
  PushSender sender_;
  transport::Window heap_;  // the slots where the medium has none to write into
  Random jitter_;

  std::unique_ptr<transport::Connection> connection_;
  Phase phase_ = Phase::kDown;
  TimePoint retry_at_ = TimePoint::min();
  int failures_ = 0;  // in a row: connections that brought no answer
  std::uint64_t attempt_ = 0;
  std::exception_ptr refusal_;
  std::string trouble_;  // why the last connection ended

  ShardWelcome welcome_;
  bool in_place_ = false;  // slots lie in the peer's window
  bool log_on_heap_ = false;
  bool initialised_ = false;
  std::uint64_t known_ = 0;     // pushes below are decided there
  std::uint64_t answered_ = 0;  // the next acknowledgement is of this one
  std::uint64_t durable_below_ = 0;
  DeclaredLosses losses_;

  bool saving_ = false, save_sent_ = false, not_saved_ = false;

  bool offering_ = false;  // what is offered is not all on its way
  bool has_offer_ = false;
  transport::Window offer_;  // kept until a snapshot covers it: a shard that lost all gets it again
  std::vector<double> accumulators_;
  std::uint64_t offered_bytes_ = 0;

  bool pulling_ = false;
  bool pull_sent_ = false;
  bool complete_ = false;    // all has arrived
  bool handed_out_ = false;  // and was adopted
  std::uint64_t request_ = 0;
  std::uint64_t arrived_ = 0, adopted_ = 0;  // bytes of the buffer
  Version pulled_;                           // of the pull under way
  Version base_;                             // of gradients from now on
  std::optional<Version> kept_base_;

  PushFragment fragment_;  // encoded from, again and again
  Writer out_;
};

}  // namespace downpour::ps
