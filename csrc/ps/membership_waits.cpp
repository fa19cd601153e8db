#include <algorithm>
#include <utility>

#include "csrc/base/error.h"
#include "csrc/ps/agreement.h"
#include "csrc/ps/membership.h"

// What members wait for: the agreement, leases, the minimum clock, the end. Who is a member is membership.cpp's.
namespace downpour::ps {
namespace {

constexpr int kMostLeases = 1024;  // in one answer, which fits a message

}  // namespace

// Every event may have answered somebody's question.
Actions Membership::settled(Actions out) {
  answer_agreements(out);
  answer_waiting_leases(out);
  answer_finish(out);
  raise_minimum(out);
  end_job(out);
  return out;
}

// ---- the agreement ------------------------------------------------------------------------------------------------

std::optional<std::string> Membership::objection(const Agreement& agreement) const {
  if (options_.servers == 0 && options_.workers > 1) {
    return without_a_server(options_.workers);
  }
  if (const auto found = flaw(agreement)) {
    return found;
  }
  if (!agreement_) {
    return std::nullopt;
  }
  if (const auto difference = first_difference(agreement, *agreement_)) {
    return concat("the job runs with what worker ", decided_by_,
                  " offered first, and that is something else: ", *difference);
  }
  return std::nullopt;
}

Actions Membership::offer(int index, const Agreement& agreement) {
  Actions out;
  Worker* worker = live_worker(index);
  if (worker == nullptr) {
    return out;
  }
  worker->progressed = now_;
  if (const auto reason = objection(agreement)) {
    refuse(index, *reason, out);
    return out;
  }
  if (!agreement_) {
    decide(index, agreement, out);
  } else if (agreement_->samples == 0 && agreement.samples > 0) {
    add_samples(agreement, out);
  }
  worker->refused.clear();
  worker->awaits_agreement = true;
  return settled(std::move(out));
}

void Membership::refuse(int worker, const std::string& reason, Actions& out) {
  workers_[static_cast<std::size_t>(worker)].refused = reason;
  out.emplace_back(SendSchemaRefused{worker_target(worker), reason});
  out.emplace_back(Note{concat("worker ", worker, " is refused: ", reason)});
}

void Membership::decide(int worker, const Agreement& agreement, Actions& out) {
  schema_ = agreement.schema.hash();
  decided_by_ = worker;
  add_samples(agreement, out);
  for (int server = 0; server < options_.servers; ++server) {
    if (live(server_target(server))) {
      out.emplace_back(SendSchema{server_target(server)});
    }
  }
}

// The model is agreed upon before its samples are; servers need not know of these.
void Membership::add_samples(const Agreement& agreement, Actions& out) {
  agreement_ = agreement;
  leases_.emplace(agreement.samples, std::max<std::int64_t>(agreement.lease_samples, 1), agreement.epochs,
                  plan_base(agreement));
  if (earlier_) {
    go_on(out);
  }
}

Actions Membership::server_ready(int index, const ServerReady& ready) {
  Actions out;
  const Target target = server_target(index);
  if (!live(target)) {
    return out;
  }
  if (!agreement_ || ready.schema != schema_) {
    const std::string why =
        concat(text(target), " made its shards for schema ", ready.schema, ", the job's is ", schema_);
    leave_server(index, /*orderly=*/false, out);
    out.emplace_back(Disconnect{target, why});
    return settled(std::move(out));
  }
  Server& server = servers_[static_cast<std::size_t>(index)];
  server.ready = true;
  if (!earlier_) {
    server.decided = ready.leases;
    hear_earlier(out);
  } else if (std::exchange(server.asked, false)) {
    audit(index, ready.leases, out);
  }
  return settled(std::move(out));
}

// All are done, so whatever is missing there is not on its way.
void Membership::audit(int index, const LeaseTable& decided, Actions& out) {
  servers_[static_cast<std::size_t>(index)].unaudited = false;
  const LeaseTable missing = leases_->done_leases().without(decided);
  if (missing.count() > 0) {
    leases_->reopen(missing);
    out.emplace_back(Note{concat(missing.count(), " leases were lost with ", text(server_target(index)),
                                 " and a worker that died too: they are dealt again")});
  }
}

void Membership::ask_unaudited(Actions& out) {
  if (!leases_->all_done() || !servers_ready()) {
    return;
  }
  for (int index = 0; index < options_.servers; ++index) {
    Server& server = servers_[static_cast<std::size_t>(index)];
    if (server.unaudited && !std::exchange(server.asked, true)) {
      out.emplace_back(AskDecided{index});
    }
  }
}

bool Membership::all_leases_done() const {
  return leases_->all_done() && servers_ready() && std::ranges::none_of(servers_, &Server::unaudited);
}

// A shard that lost its snapshot has decided nothing: then all leases are dealt, and the others answer "duplicate".
void Membership::hear_earlier(Actions& out) {
  if (!servers_ready()) {
    return;
  }
  earlier_ = LeaseTable::all();
  for (Server& server : servers_) {
    earlier_ = earlier_->intersection(std::exchange(server.decided, {}));
  }
  go_on(out);
}

// The samples come to be known before all servers are ready, or after.
void Membership::go_on(Actions& out) {
  if (leases_->total() == 0 || earlier_->count() == 0) {
    return;
  }
  const std::uint64_t done = leases_->begin_after(*earlier_);
  if (done == 0) {
    out.emplace_back(
        Note{"the snapshots are of a run with another data set size, batch size, seed or shuffling: its leases do not "
             "count, samples start at epoch 0"});
    return;
  }
  out.emplace_back(Note{concat(done, " of ", leases_->total(), " leases were done in an earlier run")});
  if (leases_->all_done()) {
    out.emplace_back(
        Note{"all epochs were done in an earlier run: ask for more epochs, or start with another --run-folder"});
  }
}

bool Membership::servers_ready() const {
  return std::ranges::all_of(servers_, [](const Server& server) { return server.ready; });
}

void Membership::answer_agreements(Actions& out) {
  if (!agreement_ || !servers_ready()) {
    return;
  }
  for (int index = 0; index < options_.workers; ++index) {
    Worker& worker = workers_[static_cast<std::size_t>(index)];
    if (!worker.awaits_agreement || is_held_back(worker)) {
      continue;
    }
    worker.awaits_agreement = false;
    if (worker.clock < minimum_) {  // it was held back
      worker.clock = minimum_;
      out.emplace_back(SendMinimumClock{worker_target(index), minimum_for(slowest())});
    }
    out.emplace_back(SendSchema{worker_target(index)});
  }
}

// Dean et al. 2012, section 4.1: one replica first. Where it has nothing more to do it is waited for no longer.
bool Membership::is_held_back(const Worker& worker) const {
  const Worker& first = workers_.front();
  return agreement_ && worker.awaits_agreement && &worker != &first && first.clock < agreement_->warm_start_steps &&
         first.finish == Finish::kNotAsked && first.phase != Phase::kLeft && first.phase != Phase::kGone;
}

// ---- leases -------------------------------------------------------------------------------------------------------

Actions Membership::ask_leases(int index, int count) {
  Actions out;
  if (Worker* worker = live_worker(index)) {
    worker->progressed = now_;
    worker->wants_leases = std::clamp(count, 1, kMostLeases);
    worker->asked_at = ++questions_;
  }
  return settled(std::move(out));
}

Actions Membership::leases_done(int index, std::span<const std::uint64_t> leases) {
  Worker* worker = live_worker(index);
  if (worker == nullptr || !leases_) {
    return {};
  }
  worker->progressed = now_;
  for (const std::uint64_t lease : leases) {
    leases_->done(lease);
  }
  return settled({});
}

// Leaves the question open when the worker must wait.
void Membership::answer_leases(int index, Actions& out) {
  Worker& worker = workers_[static_cast<std::size_t>(index)];
  const bool holds = leases_->holds(index);
  Leases answer;
  while (answer.leases.size() < static_cast<std::size_t>(worker.wants_leases)) {
    const auto lease = leases_->next(index);
    if (!lease) {
      break;
    }
    answer.leases.push_back(*lease);
  }
  answer.end = all_leases_done() ? 1 : 0;
  if (answer.leases.empty() && answer.end == 0 && !holds) {
    return;
  }
  worker.wants_leases = 0;
  out.emplace_back(SendLeases{worker_target(index), std::move(answer)});
}

// Not before the servers have said which leases are done.
void Membership::answer_waiting_leases(Actions& out) {
  if (!leases_ || !earlier_) {
    return;
  }
  std::vector<int> waiting;
  for (int index = 0; index < options_.workers; ++index) {
    if (workers_[static_cast<std::size_t>(index)].wants_leases > 0) {
      waiting.push_back(index);
    }
  }
  std::ranges::sort(waiting, {}, [this](int index) { return workers_[static_cast<std::size_t>(index)].asked_at; });
  for (const int index : waiting) {
    answer_leases(index, out);
  }
  if (!waiting.empty()) {
    ask_unaudited(out);
  }
}

// ---- the end ------------------------------------------------------------------------------------------------------

Actions Membership::finish(int index) {
  Worker* worker = live_worker(index);
  if (worker == nullptr) {
    return {};
  }
  worker->progressed = now_;
  worker->finish = Finish::kAsked;
  if (leases_) {
    leases_->give_back(index);
  }
  return settled({});
}

bool Membership::finishing_waits_for(const Worker& worker) const {
  switch (worker.phase) {
    case Phase::kAbsent: return true;
    case Phase::kLive: return worker.finish == Finish::kNotAsked;
    case Phase::kLost: return worker.finish != Finish::kAnswered;
    case Phase::kLeft:
    case Phase::kGone: return false;
  }
  return false;
}

void Membership::answer_finish(Actions& out) {
  if (std::ranges::any_of(workers_, [this](const Worker& worker) { return finishing_waits_for(worker); })) {
    return;
  }
  for (int index = 0; index < options_.workers; ++index) {
    Worker& worker = workers_[static_cast<std::size_t>(index)];
    if (worker.phase == Phase::kLive && worker.finish == Finish::kAsked) {
      worker.finish = Finish::kAnswered;
      out.emplace_back(SendFinished{worker_target(index)});
    }
  }
}

// Servers live as long as a worker may want something of them: final values, or its restart.
void Membership::end_job(Actions& out) {
  const auto ended = [](const Worker& worker) {
    return worker.phase == Phase::kGone || (worker.phase == Phase::kLeft && worker.finish != Finish::kNotAsked);
  };
  if (over_ || !std::ranges::all_of(workers_, ended)) {
    return;
  }
  over_ = true;
  for (int index = 0; index < options_.servers; ++index) {
    if (live(server_target(index))) {
      out.emplace_back(SendFinished{server_target(index)});
    }
  }
}

// ---- the clock (Ho et al. 2013: a worker may be at most max_lead steps ahead of the slowest) ----------------------

Actions Membership::tick(int index, std::int64_t step) {
  Worker* worker = live_worker(index);
  if (worker == nullptr) {
    return {};
  }
  worker->progressed = now_;
  worker->clock = std::max(worker->clock, step);
  return settled({});
}

// A warm-up is everybody's, and waits for those who have not come yet. Whoever waits for leases makes no steps, and must not
// hold up those who work on the last ones.
bool Membership::counts(const Worker& worker) const {
  if (worker.phase == Phase::kAbsent) {
    return agreement_ && agreement_->warm_up_steps > 0;
  }
  return worker.phase == Phase::kLive && worker.finish == Finish::kNotAsked && worker.wants_leases == 0 &&
         !is_held_back(worker);
}

bool Membership::uses_clock() const {
  return agreement_ && (agreement_->max_lead >= 0 || agreement_->warm_up_steps > 0);
}

Membership::Awaited Membership::slowest() const {
  Awaited awaited{-1, -1, now_};
  std::int64_t clock = 0;
  for (int index = 0; index < options_.workers; ++index) {
    const Worker& worker = workers_[static_cast<std::size_t>(index)];
    if (counts(worker) && (awaited.worker < 0 || worker.clock < clock)) {
      awaited = {index, -1, worker.progressed};
      clock = worker.clock;
    }
  }
  return awaited;
}

void Membership::raise_minimum(Actions& out) {
  const Awaited last = slowest();
  if (last.worker < 0 || workers_[static_cast<std::size_t>(last.worker)].clock <= minimum_) {
    return;
  }
  minimum_ = workers_[static_cast<std::size_t>(last.worker)].clock;
  for (int index = 0; uses_clock() && index < options_.workers; ++index) {
    if (live(worker_target(index))) {
      out.emplace_back(SendMinimumClock{worker_target(index), minimum_for(last)});
    }
  }
}

MinimumClock Membership::minimum_for(const Awaited& awaited) const {
  return {minimum_, awaited.worker, awaited.server, (now_ - awaited.progressed).count()};
}

bool Membership::waits_for(const Worker& waiter, const Worker& other) const {
  if (&other == &waiter) {
    return false;
  }
  if (waiter.finish == Finish::kAsked) {
    return finishing_waits_for(other);
  }
  const bool is_first = &other == &workers_.front();
  return waiter.awaits_agreement ? is_first && live(worker_target(0)) && is_held_back(waiter) : counts(other);
}

// Whoever makes its shards is at work as long as it is heard; whoever is away is not.
Membership::Awaited Membership::awaited_server() const {
  Awaited awaited{-1, -1, now_};
  for (int index = 0; index < options_.servers; ++index) {
    const Server& server = servers_[static_cast<std::size_t>(index)];
    if (!server.ready && (awaited.server < 0 || server.heard < awaited.progressed)) {
      awaited = {-1, index, server.heard};
    }
  }
  return awaited;
}

// The one longest without progress, and when anyone of them last made some: a wait goes on while any of them does.
Membership::Awaited Membership::awaited_by(const Worker& waiter) const {
  Awaited awaited = awaited_server();
  TimePoint oldest = now_, newest{};
  for (int index = 0; index < options_.workers; ++index) {
    const Worker& other = workers_[static_cast<std::size_t>(index)];
    if (!waits_for(waiter, other)) {
      continue;
    }
    newest = awaited.worker < 0 ? other.progressed : std::max(newest, other.progressed);
    if (awaited.worker < 0 || other.progressed < oldest) {
      oldest = other.progressed;
      awaited.worker = index;
    }
    awaited.progressed = newest;
    awaited.server = -1;
  }
  return awaited;
}

void Membership::tell_waiting(Actions& out) {
  for (int index = 0; index < options_.workers; ++index) {
    const Worker& worker = workers_[static_cast<std::size_t>(index)];
    const bool waits = worker.awaits_agreement || worker.wants_leases > 0 || worker.finish == Finish::kAsked;
    if (worker.phase == Phase::kLive && (waits || uses_clock())) {
      out.emplace_back(SendMinimumClock{worker_target(index), minimum_for(waits ? awaited_by(worker) : slowest())});
    }
  }
}

}  // namespace downpour::ps
