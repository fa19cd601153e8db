#pragma once

#include <condition_variable>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "csrc/ps/coordinator.h"
#include "csrc/ps/member.h"
#include "csrc/transport/tcp.h"

namespace downpour::ps {

// A thread with a loop that accepts on a TCP port of 127.0.0.1.
class LoopHost {
 public:
  LoopHost() : thread_([this] { run(); }) {}
  ~LoopHost() { stop(); }
  void stop() {
    if (thread_.joinable()) {
      loop_.post([this] { stopping_ = true; });
      thread_.join();
    }
  }
  // On the loop's thread, and waits for it.
  void call(const std::function<void()>& what) {
    std::promise<void> done;
    loop_.post([&] {
      what();
      done.set_value();
    });
    done.get_future().get();
  }
  transport::Loop& loop() { return loop_; }
  void listen(transport::Acceptor& acceptor) {
    listener_ =
        transport::listen_tcp(loop_, transport::bind_socket({"127.0.0.1", 0}, transport::Exposure::kLoopbackOnly),
                              acceptor, transport::SharedMemory::kNever, transport::Exposure::kLoopbackOnly);
    address_ = listener_->address();
  }
  void close_listener() { listener_.reset(); }
  const std::string& address() const { return address_; }

 private:
  void run() {
    while (!stopping_) {
      loop_.run_once(loop_.now() + std::chrono::seconds(1));
    }
  }
  const SteadyClock clock_;
  transport::Loop loop_{clock_};
  std::unique_ptr<transport::Listener> listener_;
  std::string address_;
  bool stopping_ = false;
  std::thread thread_;
};

// A coordinator on such a thread, as the launcher has one.
class CoordinatorHost final : public CoordinatorObserver {
 public:
  static constexpr std::uint64_t kJob = 77;

  explicit CoordinatorHost(const MembershipOptions& options) {
    std::vector<std::string> addresses(static_cast<std::size_t>(options.servers), "127.0.0.1:1");
    host_.call([&] {
      coordinator_ = std::make_unique<Coordinator>(host_.loop(), kJob, options, std::move(addresses), *this);
      host_.listen(*coordinator_);
    });
  }
  ~CoordinatorHost() override { die(); }
  // As a launcher that ends: its members lose it.
  void die() {
    if (coordinator_ != nullptr) {
      host_.call([this] {
        servers_.clear();
        host_.close_listener();
        coordinator_.reset();
      });
      host_.stop();
    }
  }
  void call(const std::function<void(Coordinator&)>& what) {
    host_.call([&] { what(*coordinator_); });
  }
  LoopHost& host() { return host_; }

  MemberOptions member(int rank, Duration call_deadline = std::chrono::seconds(60)) const {
    MemberOptions options;
    options.job = kJob;
    options.rank = rank;
    options.coordinator = host_.address();
    options.heartbeat = std::chrono::milliseconds(20);
    options.call_deadline = call_deadline;
    return options;
  }
  // A server that says it is ready as soon as it hears a schema.
  void start_server(int index) {
    host_.call([this, index] { servers_.push_back(std::make_unique<Server>(host_, index)); });
  }

  void on_progress(int worker, const Progress& progress) override {
    const std::lock_guard lock(mutex_);
    progress_[worker] = progress;
    changed_.notify_all();
  }
  void on_note(const std::string& text) override {
    const std::lock_guard lock(mutex_);
    notes_ += text + "\n";
    changed_.notify_all();
  }
  // Waits until the last beat of `worker` says `step`.
  bool sees_step(int worker, std::int64_t step) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(60), [&] { return progress_[worker].step == step; });
  }
  bool notes(const std::string& text) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(60), [&] { return notes_.find(text) != std::string::npos; });
  }

 private:
  class Server final : public transport::Receiver {
   public:
    Server(LoopHost& host, int index) {
      transport::Hello hello;
      hello.job = kJob;
      hello.role = transport::Role::kServer;
      hello.rank = index;
      Writer body;
      encode(JoinJob{1000 + index}, body);
      hello.body = body.take();
      transport::ConnectOptions options;
      options.largest_body_bytes = Coordinator::kLargestBodyBytes;
      connection_ =
          transport::connect_tcp(host.loop(), transport::parse_address(host.address()), hello, *this,
                                 transport::SharedMemory::kNever, transport::Exposure::kLoopbackOnly, options);
    }
    void on_open(transport::Connection& connection, const transport::Welcome&) override {
      connection.start_heartbeat(std::chrono::milliseconds(20), std::chrono::hours(1), std::chrono::hours(2));
    }
    void on_message(transport::Connection& connection, const transport::Message& message) override {
      if (message.type == static_cast<std::uint16_t>(MessageType::kSchema)) {
        Writer body;
        encode(ServerReady{decode<Agreement>(message.body).schema.hash(), {}}, body);
        connection.send(static_cast<std::uint16_t>(MessageType::kServerReady), body.bytes());
      }
    }
    void on_closed(transport::Connection&, std::exception_ptr) override {}

   private:
    std::unique_ptr<transport::Connection> connection_;
  };

  LoopHost host_;
  std::unique_ptr<Coordinator> coordinator_;
  std::vector<std::unique_ptr<Server>> servers_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int, Progress> progress_;
  std::string notes_;
};

}  // namespace downpour::ps
