#include "csrc/ps/membership.h"

#include <algorithm>
#include <utility>

#include "csrc/base/error.h"

namespace downpour::ps {
namespace {

constexpr int kBeatsPerReport = 10;  // those who wait are told for whom, every so many heartbeats

std::string described(const Target& target, std::int64_t pid) { return concat(text(target), " (process ", pid, ")"); }

bool same_work(const Progress& a, const Progress& b) {
  return a.step == b.step && a.samples == b.samples && a.pushed_bytes == b.pushed_bytes &&
         a.pulled_bytes == b.pulled_bytes;
}

}  // namespace

std::string text(const Target& target) {
  return concat(target.kind == Target::Kind::kWorker ? "worker " : "server ", target.index);
}

Membership::Membership(MembershipOptions options) : options_(options) {
  DOWNPOUR_CHECK(options.workers >= 1 && options.servers >= 0 && options.shards >= 0,
                 "membership: expected at least 1 worker, 0 servers, 0 shards, found ", options.workers, ", ",
                 options.servers, ", ", options.shards);
  workers_.resize(static_cast<std::size_t>(options.workers));
  servers_.resize(static_cast<std::size_t>(options.servers));
  if (options.servers == 0) {
    earlier_.emplace();
  }
}

Membership::Member* Membership::find(Target target) { return const_cast<Member*>(std::as_const(*this).find(target)); }

const Membership::Member* Membership::find(Target target) const {
  const bool worker = target.kind == Target::Kind::kWorker;
  const auto index = static_cast<std::size_t>(target.index);
  if (target.index < 0 || index >= (worker ? workers_.size() : servers_.size())) {
    return nullptr;
  }
  return worker ? static_cast<const Member*>(&workers_[index]) : &servers_[index];
}

Membership::Worker* Membership::live_worker(int index) {
  return live(worker_target(index)) ? &workers_[static_cast<std::size_t>(index)] : nullptr;
}

std::uint32_t Membership::incarnation(int worker) const {
  const Member* member = find(worker_target(worker));
  return member != nullptr ? member->incarnation : 0;
}

std::string Membership::refused(int worker) const {
  const Member* member = find(worker_target(worker));
  return member != nullptr ? static_cast<const Worker*>(member)->refused : "";
}

bool Membership::live(Target target) const {
  const Member* member = find(target);
  return member != nullptr && member->phase == Phase::kLive;
}

void Membership::see(TimePoint now) {
  if (!stall_) {
    stall_.emplace(options_.heartbeat, options_.silence, now);
    now_ = told_waiting_ = now;
    for (Worker& worker : workers_) {
      worker.progressed = now;
    }
    for (Server& server : servers_) {
      server.heard = now;
    }
  }
  now_ = std::max(now_, now);
}

// ---- joining and leaving ------------------------------------------------------------------------------------------

std::optional<std::string> Membership::refusal(Target target, std::int64_t pid) const {
  const bool worker = target.kind == Target::Kind::kWorker;
  const Member* member = find(target);
  if (member == nullptr) {
    const int count = worker ? options_.workers : options_.servers;
    if (count == 0) {
      return concat(text(target), " has no place in this job: it has no servers; start it with --servers");
    }
    return concat(text(target), " has no place in this job: its ", worker ? "workers" : "servers", " are 0 to ",
                  count - 1);
  }
  if (member->phase == Phase::kLive && member->pid != pid) {
    return concat(text(target), " is taken: process ", member->pid, " holds it, process ", pid, " asks for it");
  }
  if (worker && workers_[static_cast<std::size_t>(target.index)].has_finished()) {
    return concat(text(target), " has finished: the job is over for it, and another optimizer needs another job");
  }
  return std::nullopt;
}

Actions Membership::join(Target target, std::int64_t pid, TimePoint now) {
  if (const auto reason = refusal(target, pid)) {
    throw Error(*reason);
  }
  see(now);
  Actions out;
  target.kind == Target::Kind::kWorker ? join_worker(target.index, out) : join_server(target.index, out);
  Member& member = *find(target);
  member.phase = Phase::kLive;
  member.pid = pid;
  member.heard = now_;
  member.warned = false;
  return settled(std::move(out));
}

void Membership::join_worker(int index, Actions& out) {
  Worker& worker = workers_[static_cast<std::size_t>(index)];
  const Target target = worker_target(index);
  if (worker.incarnation > 0) {
    end_life(index, out);
    out.emplace_back(Note{concat(text(target), " joins again, incarnation ", worker.incarnation + 1)});
  }
  Worker life;
  life.incarnation = worker.incarnation + 1;
  life.fenced_below = worker.fenced_below;
  life.clock = minimum_;
  life.progressed = now_;
  worker = life;
  over_ = false;
  const int shards = options_.shards > 0 ? options_.shards : options_.servers;
  out.emplace_back(SendJoined{target, {worker.incarnation, options_.workers, shards, {}}});
  out.emplace_back(SendMinimumClock{target, minimum_for(slowest())});
}

void Membership::join_server(int index, Actions& out) {
  Server& server = servers_[static_cast<std::size_t>(index)];
  const Target target = server_target(index);
  Server life;
  life.incarnation = server.incarnation + 1;
  life.unaudited = server.incarnation > 0;
  server = life;
  const int shards = options_.shards > 0 ? options_.shards : options_.servers;
  out.emplace_back(SendJoined{target, {server.incarnation, options_.workers, shards, {}}});
  if (agreement_) {
    out.emplace_back(SendSchema{target});
    send_fences(target, out);
  }
  if (over_) {
    out.emplace_back(SendFinished{target});
  }
}

void Membership::send_fences(Target server, Actions& out) const {
  for (int index = 0; index < options_.workers; ++index) {
    const std::uint32_t below = workers_[static_cast<std::size_t>(index)].fenced_below;
    if (below > 0) {
      out.emplace_back(SendFence{server, {index, below}});
    }
  }
}

// Whatever the life still has in flight must not count from now on; its leases are anyone's again.
void Membership::end_life(int index, Actions& out) {
  Worker& worker = workers_[static_cast<std::size_t>(index)];
  if (worker.fenced_below <= worker.incarnation) {
    worker.fenced_below = worker.incarnation + 1;
    for (int server = 0; server < options_.servers; ++server) {
      if (live(server_target(server))) {
        out.emplace_back(SendFence{server_target(server), {index, worker.fenced_below}});
      }
    }
  }
  worker.awaits_agreement = false;
  worker.wants_leases = 0;
  if (leases_) {
    const std::int64_t returned = leases_->give_back(index);
    if (returned > 0) {
      out.emplace_back(Note{concat("worker ", index, ": ", returned, " leases are given out again")});
    }
  }
}

void Membership::lose_worker(int index, const std::string& why, Actions& out) {
  Worker& worker = workers_[static_cast<std::size_t>(index)];
  out.emplace_back(Note{concat(described(worker_target(index), worker.pid), " is lost: ", why)});
  worker.phase = Phase::kLost;
  worker.progressed = now_;
  end_life(index, out);
}

void Membership::leave_server(int index, bool orderly, Actions& out) {
  Server& server = servers_[static_cast<std::size_t>(index)];
  server.phase = orderly ? Phase::kLeft : Phase::kLost;
  server.ready = false;
  if (!orderly) {
    out.emplace_back(Note{concat(described(server_target(index), server.pid), " is lost: its connection ended")});
  }
}

Actions Membership::leave(Target target, bool orderly, TimePoint now) {
  see(now);
  Actions out;
  if (!live(target)) {
    return out;
  }
  if (target.kind == Target::Kind::kServer) {
    leave_server(target.index, orderly, out);
  } else if (!orderly) {
    lose_worker(target.index, "its connection ended", out);
  } else {
    Worker& worker = workers_[static_cast<std::size_t>(target.index)];
    worker.phase = Phase::kLeft;
    worker.awaits_agreement = false;
    worker.wants_leases = 0;
    if (leases_) {
      leases_->give_back(target.index);
    }
  }
  return settled(std::move(out));
}

Actions Membership::gone(int worker, TimePoint now) {
  DOWNPOUR_CHECK(find(worker_target(worker)) != nullptr, *refusal(worker_target(worker), 0));
  see(now);
  Actions out;
  if (live(worker_target(worker))) {
    const char* why = "its process ended";
    lose_worker(worker, why, out);
    out.emplace_back(Disconnect{worker_target(worker), why});
  }
  workers_[static_cast<std::size_t>(worker)].phase = Phase::kGone;
  return settled(std::move(out));
}

// ---- silence ------------------------------------------------------------------------------------------------------

void Membership::heard(Target target, TimePoint when) {
  see(when);
  if (live(target)) {
    Member& member = *find(target);
    member.heard = std::max(member.heard, when);
  }
}

void Membership::beat(int index, const Progress& progress) {
  if (Worker* worker = live_worker(index)) {
    if (!same_work(progress, worker->last_beat)) {
      worker->progressed = now_;
    }
    worker->last_beat = progress;
  }
}

Actions Membership::check(TimePoint now) {
  see(now);
  notice_own_stall(now);
  Actions out;
  for (int index = 0; index < options_.workers; ++index) {
    check_worker(index, out);
  }
  for (int index = 0; index < options_.servers; ++index) {
    check_server(index, out);
  }
  out = settled(std::move(out));
  if (now_ - told_waiting_ >= kBeatsPerReport * options_.heartbeat) {
    told_waiting_ = now_;
    tell_waiting(out);
  }
  return out;
}

void Membership::notice_own_stall(TimePoint now) {
  const Duration missed = stall_->look(now);
  for (Worker& worker : workers_) {
    worker.heard = std::min(worker.heard + missed, now);
    worker.progressed = std::min(worker.progressed + missed, now);
  }
  for (Server& server : servers_) {
    server.heard = std::min(server.heard + missed, now);
  }
}

void Membership::warn(Target target, Member& member, Actions& out) const {
  const Duration silent = now_ - member.heard;
  const bool quiet = silent >= options_.warn_after;
  if (quiet && !member.warned) {
    out.emplace_back(Note{concat(described(target, member.pid), " has not been heard for ", seconds(silent),
                                 " s; it is given up after ", seconds(options_.silence), " s")});
  } else if (!quiet && member.warned) {
    out.emplace_back(Note{concat(described(target, member.pid), " is heard again")});
  }
  member.warned = quiet;
}

void Membership::check_worker(int index, Actions& out) {
  Worker* worker = live_worker(index);
  if (worker == nullptr) {
    return;
  }
  const Target target = worker_target(index);
  const Duration silent = now_ - worker->heard;
  if (silent < options_.silence) {
    warn(target, *worker, out);
    return;
  }
  const std::string why = concat("fenced, nothing was heard of it for ", seconds(silent), " s");
  lose_worker(index, why, out);
  out.emplace_back(SendFence{target, {index, worker->fenced_below}});
  out.emplace_back(Disconnect{target, why});
}

void Membership::check_server(int index, Actions& out) {
  Server& server = servers_[static_cast<std::size_t>(index)];
  const Target target = server_target(index);
  // Told to end it writes its last snapshot, for as long as that takes.
  if (!live(target) || over_) {
    return;
  }
  warn(target, server, out);
  const bool silent = now_ - server.heard >= options_.silence;
  if (silent && !server.reported_silent) {
    out.emplace_back(ServerSilent{index});
  }
  server.reported_silent = silent;
}

}  // namespace downpour::ps
