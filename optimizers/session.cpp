#include "optimizers/session.h"

#include <algorithm>
#include <utility>

#include "csrc/base/log.h"
#include "csrc/ps/fenced_error.h"
#include "csrc/ps/lease_book.h"

namespace downpour::optimizers {
namespace {

constexpr std::int64_t kMostLeasesAhead = 4;  // hides the coordinator's round trip behind the steps

Duration call_deadline(const Environment& environment, const DownpourOptions& options) {
  return environment.no_deadlines ? kNever : Duration(options.call_deadline());
}

// Who waits for a server that is lost hears of the job's end, and why, from the coordinator.
ps::NetworkOptions network_options(const Environment& environment, const ps::Member& member,
                                   transport::SharedMemory shared_memory) {
  const ps::Joined joined = member.joined();
  ps::NetworkOptions options;
  options.servers = joined.servers;
  options.shard_count = joined.shards;
  options.check = [&member] { member.check(); };
  options.shared_memory = shared_memory;
  options.exposure = transport::exposure_of(environment);
  return options;
}

ps::ClientOptions client_options(const Environment& environment, const DownpourOptions& options,
                                 std::uint32_t incarnation) {
  ps::ClientOptions result;
  result.job = environment.job;
  result.rank = environment.rank;
  result.incarnation = incarnation;
  result.replay_budget_bytes = static_cast<std::uint64_t>(options.replay_budget_bytes());
  result.call_deadline = call_deadline(environment, options);
  return result;
}

// Before anything is connected to the servers, which make their shards of it.
std::uint32_t agree_first(ps::Member& member, const ps::Agreement& agreement, const Environment& environment) {
  const int workers = member.joined().workers;
  DOWNPOUR_CHECK(environment.world_size == workers, "worker ", environment.rank, ": WORLD_SIZE is ",
                 environment.world_size, ", but the job at ", environment.coordinator, " has ", workers,
                 " workers: set WORLD_SIZE=", workers, ", or start the job with --workers ", environment.world_size);
  member.agree(agreement);
  return member.joined().incarnation;
}

}  // namespace

ps::MemberOptions member_options(const Environment& environment, const DownpourOptions& options) {
  ps::MemberOptions result;
  result.job = environment.job;
  result.rank = environment.rank;
  result.coordinator = environment.coordinator;
  result.insecure = environment.insecure;
  result.call_deadline = call_deadline(environment, options);
  result.silence = environment.no_deadlines ? kNever : environment.silence.value_or(result.silence);
  return result;
}

Session::Session(const Environment& environment, const DownpourOptions& options, ps::Agreement agreement,
                 transport::SharedMemory shared_memory)
    : environment_(environment),
      call_deadline_(call_deadline(environment, options)),
      agreement_(std::move(agreement)),
      member_(member_options(environment, options)),
      incarnation_(agree_first(member_, agreement_, environment)),
      connector_(clock_, network_options(environment, member_, shared_memory)),
      client_(agreement_.schema, member_.joined().shards, connector_,
              client_options(environment, options, incarnation_)) {}

void Session::agree(const ps::Agreement& agreement) {
  outlive_fences([&] { member_.agree(agreement); });
  agreement_ = agreement;
}

void Session::outlive_fences(const std::function<void()>& call) {
  for (bool fenced = false;;) {
    try {
      if (fenced) {
        live_again();
      }
      return call();
    } catch (const ps::FencedError& error) {
      log_warning("worker ", rank(), " joins again: ", error.what());
      fenced = true;
    }
  }
}

void Session::live_again() {
  await_fence();
  member_.rejoin();
  leases_.clear();  // others have got them
  member_.agree(agreement_);
  incarnation_ = member_.joined().incarnation;
  client_.set_incarnation(incarnation_);
}

// A shard may know of the fence before our member does.
void Session::await_fence() {
  const TimePoint limit = clock_.now() + call_deadline_;
  try {
    while (!member_.fenced()) {
      member_.tick(ticked_);  // raises what else may have ended this life
      DOWNPOUR_CHECK_AS(TimeoutError, clock_.now() < limit, "worker ", rank(),
                        ": a server says that this worker was fenced, but the ", "coordinator at ",
                        environment_.coordinator, " has not said so for ", seconds(call_deadline_), " s");
      connector_.run_once(clock_.now() + std::chrono::milliseconds(5), Duration::zero());
    }
  } catch (const ps::FencedError&) {
    return;
  }
}

void Session::advance_clock(std::int64_t ticks) {
  member_.tick(ticked_ + ticks);
  ticked_ += ticks;
}

void Session::wait_for_the_slowest(std::int64_t behind) { member_.wait_minimum_clock(ticked_ - behind); }

void Session::finish() {
  outlive_fences([this] { member_.finish(); });
}

// Fewer near the end, so that no worker holds many while others have none.
int Session::leases_to_ask() const {
  const std::int64_t lease = std::max<std::int64_t>(agreement_.lease_samples, 1);
  const std::int64_t total = (agreement_.samples + lease - 1) / lease * agreement_.epochs;
  const std::int64_t left = total - static_cast<std::int64_t>(last_lease_);
  return static_cast<int>(std::clamp<std::int64_t>(left / (2 * std::max(world_size(), 1)), 1, kMostLeasesAhead));
}

std::optional<ps::Lease> Session::next_lease() {
  while (leases_.empty()) {
    tell_decided_leases();
    ps::Leases answer;
    outlive_fences([&] { answer = member_.ask_leases(leases_to_ask()); });
    leases_.assign(answer.leases.begin(), answer.leases.end());
    if (leases_.empty() && answer.end != 0) {
      return std::nullopt;
    }
    if (leases_.empty()) {
      // Others may wait for what we hold.
      outlive_fences([this] { client_.settle(); });
    }
  }
  const ps::Lease lease = leases_.front();
  leases_.pop_front();
  last_lease_ = std::max(last_lease_, ps::lease_number(lease.id));
  return lease;
}

void Session::tell_decided_leases() {
  const auto decided = client_.take_decided_leases();
  if (!decided.empty()) {
    outlive_fences([&] { member_.leases_done(decided); });
  }
}

}  // namespace downpour::optimizers
