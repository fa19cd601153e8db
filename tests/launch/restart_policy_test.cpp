#include "csrc/launch/restart_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <random>
#include <set>

namespace downpour::launch {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::string describe(const StartProcess& one) { return concat("start ", to_text(one.who), " life ", one.life); }
std::string describe(const SendSignal& one) { return concat(signal_name(one.signal), " to ", to_text(one.who)); }
std::string describe(const NewRound& one) { return concat("round ", one.round); }
std::string describe(const AbortJob&) { return "abort"; }
std::string describe(const ReleaseServers&) { return "release"; }
std::string describe(const CutOff& one) { return concat(to_text(one.who), " is cut off"); }
std::string describe(const EndJob& one) { return concat("end ", one.exit_code); }
std::string describe(const Failed& one) {
  switch (one.consequence) {
    case Failed::Consequence::kRestart:
      return concat(to_text(one.who), " failed, restart ", one.restart, " of ", one.allowed);
    case Failed::Consequence::kEndsJob:
      return concat(to_text(one.who), " failed, ends the job",
                    one.no_restart == Failed::NoRestart::kOthersStay ? ", others stay" : "");
    case Failed::Consequence::kHarmless: return concat(to_text(one.who), " failed, harms nobody");
    default: return concat(to_text(one.who), " failed too");
  }
}

std::vector<std::string> describe(const Decisions& decisions) {
  std::vector<std::string> texts;
  for (const Decision& decision : decisions) {
    texts.push_back(std::visit([](const auto& one) { return describe(one); }, decision));
  }
  return texts;
}

// A policy, and a clock that jumps to whatever the policy waits for.
class RestartPolicyTest : public ::testing::Test {
 protected:
  void make(int workers, int servers) {
    options_.workers = workers;
    options_.servers = servers;
    policy_.emplace(options_);
    policy_->begin();
  }
  std::vector<std::string> exits(Target who, int code, Finished finished = Finished::kNo) {
    return describe(policy_->exited(who, {.code = code}, finished, now_));
  }
  std::vector<std::string> dies(Target who, int signal, Finished finished = Finished::kNo) {
    return describe(policy_->exited(who, {.signal = signal}, finished, now_));
  }
  std::vector<std::string> interrupt(int signal) { return describe(policy_->interrupted(signal, now_)); }
  std::vector<std::string> wait() {
    now_ = policy_->deadline().value();
    return describe(policy_->check(now_));
  }

  PolicyOptions options_;
  std::optional<RestartPolicy> policy_;
  TimePoint now_{std::chrono::hours(1)};
};

TEST_F(RestartPolicyTest, StartsServersBeforeWorkers) {
  options_.workers = options_.servers = 2;
  EXPECT_THAT(describe(RestartPolicy(options_).begin()), ElementsAre("start server 0 life 0", "start server 1 life 0",
                                                                     "start worker 0 life 0", "start worker 1 life 0"));
}

TEST_F(RestartPolicyTest, SuccessOfAllWorkersReleasesTheServersAndTheirEndEndsTheJob) {
  make(2, 1);
  EXPECT_THAT(exits(worker(1), 0), IsEmpty());
  EXPECT_THAT(exits(worker(0), 0), ElementsAre("release"));
  EXPECT_THAT(exits(server(0), 0, Finished::kYes), ElementsAre("end 0"));
}

TEST_F(RestartPolicyTest, ServersThatDoNotEndAreKilledAfterTheWholeTimeAndTheJobStillSucceeds) {
  make(1, 1);
  const TimePoint begun = now_;
  exits(worker(0), 0);
  EXPECT_THAT(wait(), ElementsAre("SIGKILL to server 0"));
  EXPECT_EQ(now_ - begun, options_.closing) << "nothing cuts a last snapshot short before";
  EXPECT_THAT(dies(server(0), SIGKILL), ElementsAre("server 0 is cut off", "end 0"));
}

TEST_F(RestartPolicyTest, AServerThatEndsJustBeforeItsSIGKILLIsNotCutOff) {
  make(1, 1);
  exits(worker(0), 0);
  EXPECT_THAT(wait(), ElementsAre("SIGKILL to server 0"));
  EXPECT_THAT(exits(server(0), 0, Finished::kYes), ElementsAre("end 0"));
}

TEST_F(RestartPolicyTest, AServerSilentWhileItSavesIsCutOff) {
  make(1, 1);
  exits(worker(0), 0);
  EXPECT_THAT(describe(policy_->silent(0)), ElementsAre("SIGKILL to server 0"));
  EXPECT_THAT(dies(server(0), SIGKILL), ElementsAre("server 0 is cut off", "end 0"));
}

TEST_F(RestartPolicyTest, AServerMayEndBeforeTheLastWorkerOnceAllHaveFinished) {
  make(1, 1);
  EXPECT_THAT(exits(server(0), 0, Finished::kYes), IsEmpty());
  EXPECT_THAT(exits(worker(0), 0, Finished::kYes), ElementsAre("end 0"));
}

TEST_F(RestartPolicyTest, WithServersAWorkerRestartsAlone) {
  make(2, 1);
  EXPECT_THAT(dies(worker(1), SIGKILL), ElementsAre("worker 1 failed, restart 1 of 3"));
  EXPECT_THAT(wait(), ElementsAre("start worker 1 life 1"));
  EXPECT_EQ(policy_->restarts(worker(1)), 1);
  EXPECT_EQ(policy_->restarts(worker(0)), 0);
}

TEST_F(RestartPolicyTest, PausesDoubleUpToTheLargest) {
  options_.worker_restarts = 20;
  make(1, 1);
  Duration former{};
  for (int restart = 0; restart < 20; ++restart) {
    dies(worker(0), SIGKILL);
    const Duration pause = policy_->deadline().value() - now_;
    EXPECT_EQ(pause, restart == 0 ? options_.first_pause : std::min(2 * former, options_.largest_pause)) << restart;
    former = pause;
    wait();
  }
  EXPECT_EQ(former, options_.largest_pause);
}

TEST_F(RestartPolicyTest, AWorkerWithoutRestartsLeftEndsTheJobWithItsCode) {
  options_.worker_restarts = 1;
  make(2, 1);
  exits(worker(1), 7);
  wait();
  EXPECT_THAT(exits(worker(1), 9), ElementsAre("worker 1 failed, ends the job", "abort", "SIGTERM to worker 0"));
  EXPECT_THAT(dies(worker(0), SIGTERM), ElementsAre("release")) << "servers outlive the workers";
  EXPECT_THAT(exits(server(0), 1), ElementsAre("end 9")) << "a server that says it was aborted is no failure";
}

TEST_F(RestartPolicyTest, ADeathBySignalBecomes128PlusItsNumber) {
  options_.worker_restarts = 0;
  make(1, 0);
  EXPECT_THAT(dies(worker(0), SIGSEGV), ElementsAre("worker 0 failed, ends the job", "abort", "end 139"));
}

TEST_F(RestartPolicyTest, TheFirstFailureDecidesTheCodeWhateverFollows) {
  options_.worker_restarts = 0;
  make(3, 0);
  exits(worker(2), 5);
  EXPECT_THAT(exits(worker(0), 1), ElementsAre("worker 0 failed too"));
  EXPECT_THAT(dies(worker(1), SIGTERM), ElementsAre("end 5")) << "what we asked for is no failure";
}

TEST_F(RestartPolicyTest, ACaughtSIGTERMIsNoFailure) {
  options_.worker_restarts = 0;
  make(2, 0);
  exits(worker(0), 5);
  EXPECT_THAT(exits(worker(1), 128 + SIGTERM), ElementsAre("end 5"));
}

TEST_F(RestartPolicyTest, WithoutServersAnyDeathRestartsAll) {
  make(3, 0);
  exits(worker(2), 0);
  EXPECT_THAT(exits(worker(0), 1), ElementsAre("worker 0 failed, restart 1 of 3", "SIGTERM to worker 1"));
  EXPECT_THAT(dies(worker(1), SIGTERM), IsEmpty()) << "the pause is not over";
  EXPECT_THAT(wait(),
              ElementsAre("round 1", "start worker 0 life 1", "start worker 1 life 1", "start worker 2 life 1"));
}

TEST_F(RestartPolicyTest, ARestartOfAllWaitsForSurvivorsAndKillsThemAfterTheGraceTime) {
  make(2, 0);
  exits(worker(0), 1);
  const TimePoint begun = now_;
  EXPECT_THAT(wait(), ElementsAre("SIGKILL to worker 1"));
  EXPECT_EQ(now_ - begun, options_.grace);
  EXPECT_THAT(dies(worker(1), SIGKILL), ElementsAre("round 1", "start worker 0 life 1", "start worker 1 life 1"));
}

// One that waits inside the kernel would keep the job for ever.
TEST_F(RestartPolicyTest, ARestartOfAllGivesUpWhereSIGKILLDoesNotEndThem) {
  make(2, 0);
  exits(worker(0), 3);
  EXPECT_THAT(wait(), ElementsAre("SIGKILL to worker 1"));
  const TimePoint killed = now_;
  EXPECT_THAT(wait(), ElementsAre("worker 0 failed, ends the job, others stay", "end 3"));
  EXPECT_EQ(now_ - killed, options_.give_up);
  EXPECT_EQ(policy_->deadline(), std::nullopt);
}

TEST_F(RestartPolicyTest, ARestartOfAllThatSIGKILLHelpedGoesOn) {
  make(2, 0);
  exits(worker(0), 3);
  wait();
  dies(worker(1), SIGKILL);
  EXPECT_EQ(policy_->deadline(), std::nullopt) << "nothing of the last round is waited for";
  EXPECT_THAT(exits(worker(0), 0), IsEmpty());
  EXPECT_THAT(exits(worker(1), 0), ElementsAre("end 0"));
}

TEST_F(RestartPolicyTest, RestartsOfAllAreCountedTogether) {
  options_.worker_restarts = 2;
  make(2, 0);
  for (int round = 0; round < 2; ++round) {
    exits(worker(round), 1);
    dies(worker(1 - round), SIGTERM);
    wait();
  }
  EXPECT_THAT(exits(worker(1), 4), ElementsAre("worker 1 failed, ends the job", "abort", "SIGTERM to worker 0"));
  EXPECT_THAT(dies(worker(0), SIGTERM), ElementsAre("end 4"));
}

TEST_F(RestartPolicyTest, AServerRestartsAloneWhateverItsCode) {
  make(1, 2);
  EXPECT_THAT(exits(server(1), 0), ElementsAre("server 1 failed, restart 1 of 3"));
  EXPECT_THAT(wait(), ElementsAre("start server 1 life 1"));
}

TEST_F(RestartPolicyTest, ASilentServerIsKilledSoThatItRestarts) {
  make(1, 1);
  EXPECT_THAT(describe(policy_->silent(0)), ElementsAre("SIGKILL to server 0"));
  EXPECT_THAT(dies(server(0), SIGKILL), ElementsAre("server 0 failed, restart 1 of 3"));
  EXPECT_THAT(describe(policy_->silent(0)), IsEmpty()) << "it is not running";
}

TEST_F(RestartPolicyTest, AServerWithoutRestartsLeftEndsTheJob) {
  options_.server_restarts = 0;
  make(1, 1);
  EXPECT_THAT(dies(server(0), SIGKILL), ElementsAre("server 0 failed, ends the job", "abort", "SIGTERM to worker 0"));
  EXPECT_THAT(dies(worker(0), SIGTERM), ElementsAre("end 137"));
}

TEST_F(RestartPolicyTest, AServerThatEndsTooEarlyWithCode0StillFailsTheJob) {
  options_.server_restarts = 0;
  make(1, 1);
  exits(server(0), 0);
  EXPECT_THAT(dies(worker(0), SIGTERM), ElementsAre("end 1"));
}

// The workers have their final values by then, and finish() has waited for snapshots of all they had pushed.
TEST_F(RestartPolicyTest, AServerThatFailsOnceEveryWorkerHasFinishedHarmsNobody) {
  options_.server_restarts = 0;
  make(2, 2);
  EXPECT_THAT(exits(worker(0), 0), IsEmpty());
  EXPECT_THAT(dies(server(1), SIGKILL, Finished::kYes), ElementsAre("server 1 failed, harms nobody"));
  EXPECT_THAT(exits(worker(1), 0, Finished::kYes), ElementsAre("release")) << "for the other one";
  EXPECT_THAT(dies(server(0), SIGSEGV, Finished::kYes), ElementsAre("server 0 failed, harms nobody", "end 0"));
}

TEST_F(RestartPolicyTest, AWorkerThatFailsAfterItAllStillEndsTheJobWithItsCode) {
  make(1, 1);
  dies(server(0), SIGKILL, Finished::kYes);
  EXPECT_THAT(exits(worker(0), 3, Finished::kYes), ElementsAre("worker 0 failed, ends the job", "abort", "end 3"));
}

// One of them may still be about to pull its final values.
TEST_F(RestartPolicyTest, AServerIsRestartedUntilTheLastWorkerHasFinished) {
  make(2, 1);
  exits(worker(0), 0);
  EXPECT_THAT(dies(server(0), SIGKILL), ElementsAre("server 0 failed, restart 1 of 3"));
  EXPECT_THAT(wait(), ElementsAre("start server 0 life 1"));
}

TEST_F(RestartPolicyTest, AFailureAfterTheServersWereToldToEndIsFinal) {
  make(1, 1);
  EXPECT_THAT(exits(worker(0), 3, Finished::kYes), ElementsAre("worker 0 failed, ends the job", "abort", "release"));
}

TEST_F(RestartPolicyTest, CtrlCForwardsThenAsksThenKills) {
  make(2, 1);
  EXPECT_THAT(interrupt(SIGINT), ElementsAre("SIGINT to worker 0", "SIGINT to worker 1"));
  EXPECT_THAT(dies(worker(0), SIGINT), IsEmpty());
  EXPECT_THAT(wait(), ElementsAre("SIGTERM to worker 1"));
  EXPECT_THAT(wait(), ElementsAre("SIGKILL to worker 1", "release"));
  EXPECT_THAT(dies(worker(1), SIGKILL), IsEmpty());
  EXPECT_THAT(wait(), ElementsAre("SIGKILL to server 0"));
  EXPECT_THAT(dies(server(0), SIGKILL), ElementsAre("server 0 is cut off", "end 130"));
}

// One worker that ignores its signal, or stands still, must not cost the last snapshot of healthy servers.
TEST_F(RestartPolicyTest, ServersHaveTheLastThirdOfTheGraceTimeWhateverTheWorkersDo) {
  options_.grace = std::chrono::seconds(9);
  for (const int number : {SIGINT, SIGTERM}) {
    make(1, 1);
    const TimePoint begun = now_;
    interrupt(number);
    if (number == SIGINT) {
      wait();
    }
    EXPECT_THAT(wait(), ElementsAre("SIGKILL to worker 0", "release")) << "it need not even end: it pushes no more";
    EXPECT_EQ(now_ - begun, std::chrono::seconds(6));
    EXPECT_THAT(exits(server(0), 0, Finished::kYes), IsEmpty());
    EXPECT_THAT(dies(worker(0), SIGKILL), ElementsAre(concat("end ", 128 + number)));
  }
}

TEST_F(RestartPolicyTest, AFailureThatEndsTheJobLeavesTheServersTheirThirdToo) {
  options_.grace = std::chrono::seconds(9);
  options_.worker_restarts = 0;
  make(2, 1);
  exits(worker(0), 5);
  EXPECT_THAT(wait(), ElementsAre("SIGKILL to worker 1", "release"));
  EXPECT_THAT(dies(worker(1), SIGKILL), IsEmpty());
  EXPECT_THAT(exits(server(0), 1), ElementsAre("end 5"));
}

TEST_F(RestartPolicyTest, AWorkerThatNotEvenSIGKILLEndsIsNoExcuseToWaitForServers) {
  make(1, 1);
  interrupt(SIGTERM);
  wait();
  EXPECT_THAT(wait(), ElementsAre("SIGKILL to worker 0", "SIGKILL to server 0"));
  EXPECT_THAT(dies(server(0), SIGKILL), ElementsAre("server 0 is cut off"));
  EXPECT_THAT(wait(), ElementsAre("end 143"));
}

TEST_F(RestartPolicyTest, WithoutGraceAllAreKilledAtOnce) {
  options_.grace = Duration::zero();
  make(1, 1);
  interrupt(SIGTERM);
  EXPECT_THAT(wait(), ElementsAre("SIGKILL to worker 0", "SIGKILL to server 0"));
}

TEST_F(RestartPolicyTest, CtrlCEndsCleanlyWith130WhateverTheProgramSays) {
  make(2, 1);
  interrupt(SIGINT);
  EXPECT_THAT(exits(worker(0), 0), IsEmpty());
  EXPECT_THAT(exits(worker(1), 1), ElementsAre("release")) << "no failure is reported";
  EXPECT_THAT(exits(server(0), 0), ElementsAre("end 130"));
}

TEST_F(RestartPolicyTest, TheSecondCtrlCKillsAtOnce) {
  make(2, 1);
  interrupt(SIGINT);
  EXPECT_THAT(interrupt(SIGINT), ElementsAre("SIGKILL to worker 0", "SIGKILL to worker 1", "SIGKILL to server 0"));
}

TEST_F(RestartPolicyTest, ReleasedServersGetTheRestOfTheGraceTimeWhateverTheSignalWas) {
  for (const int number : {SIGINT, SIGTERM}) {
    make(1, 1);
    const TimePoint begun = now_;
    interrupt(number);
    now_ += std::chrono::seconds(2);
    EXPECT_THAT(dies(worker(0), number), ElementsAre("release"));
    EXPECT_THAT(wait(), ElementsAre("SIGKILL to server 0"));
    EXPECT_EQ(now_ - begun, options_.grace);
  }
}

TEST_F(RestartPolicyTest, SIGTERMGetsTheWholeGraceTimeBeforeSIGKILL) {
  make(1, 0);
  const TimePoint begun = now_;
  EXPECT_THAT(interrupt(SIGTERM), ElementsAre("SIGTERM to worker 0"));
  EXPECT_THAT(wait(), ElementsAre("SIGKILL to worker 0"));
  EXPECT_EQ(now_ - begun, options_.grace);
  EXPECT_THAT(dies(worker(0), SIGKILL), ElementsAre("end 143"));
}

TEST_F(RestartPolicyTest, SIGQUITKillsAtOnce) {
  make(1, 0);
  EXPECT_THAT(interrupt(SIGQUIT), ElementsAre("SIGKILL to worker 0"));
  EXPECT_THAT(dies(worker(0), SIGKILL), ElementsAre("end 131"));
}

TEST_F(RestartPolicyTest, ASignalDuringAFailureKillsAndKeepsTheFailuresCode) {
  options_.worker_restarts = 0;
  make(2, 0);
  exits(worker(0), 5);
  EXPECT_THAT(interrupt(SIGINT), ElementsAre("SIGKILL to worker 1"));
  EXPECT_THAT(dies(worker(1), SIGKILL), ElementsAre("end 5"));
}

TEST_F(RestartPolicyTest, ASignalWhileAProcessWaitsToRestartStartsNothing) {
  make(1, 1);
  exits(worker(0), 1);
  EXPECT_THAT(interrupt(SIGINT), ElementsAre("release"));
  EXPECT_THAT(exits(server(0), 0), ElementsAre("end 130"));
}

TEST_F(RestartPolicyTest, ASignalWhileAllRestartStartsNothing) {
  make(2, 0);
  exits(worker(0), 1);
  interrupt(SIGTERM);
  EXPECT_THAT(dies(worker(1), SIGTERM), ElementsAre("end 143"));
}

TEST_F(RestartPolicyTest, AProcessThatEvenSIGKILLDoesNotEndIsLeftBehindAtLast) {
  make(1, 0);
  interrupt(SIGTERM);
  interrupt(SIGTERM);
  EXPECT_THAT(wait(), ElementsAre("end 143"));
  EXPECT_EQ(policy_->deadline(), std::nullopt);
}

TEST_F(RestartPolicyTest, AServerLeftBehindIsCutOffToo) {
  make(1, 1);
  exits(worker(0), 0);
  wait();
  EXPECT_THAT(wait(), ElementsAre("server 0 is cut off", "end 0"));
}

TEST_F(RestartPolicyTest, NothingFollowsTheEnd) {
  make(1, 0);
  EXPECT_THAT(exits(worker(0), 0), ElementsAre("end 0"));
  EXPECT_THAT(interrupt(SIGINT), IsEmpty());
  EXPECT_THAT(describe(policy_->check(now_ + std::chrono::hours(1))), IsEmpty());
}

// A job whose processes end when they like, and always when killed; whatever happens, it reaches its end.
class RandomJob {
 public:
  explicit RandomJob(unsigned seed) : random_(seed + 1), policy_(options()) { apply(policy_.begin()); }

  void run() {
    for (int step = 0; step < 200 && !over_; ++step) {
      one_event(step);
    }
    for (int signal = 0; signal < 2 && !over_; ++signal) {
      apply(policy_.interrupted(SIGTERM, now_));
    }
    bury();
    EXPECT_TRUE(over_);
    EXPECT_TRUE(alive_.empty()) << "the job ended over a live process";
  }

 private:
  PolicyOptions options() {
    return {.workers = 1 + below(3), .servers = below(3), .worker_restarts = below(4), .server_restarts = below(4)};
  }
  int below(unsigned bound) { return static_cast<int>(random_() % bound); }

  void one_event(int step) {
    bury();
    if (below(2) == 0 && !alive_.empty()) {
      const Target who = *std::next(alive_.begin(), below(static_cast<unsigned>(alive_.size())));
      end(who, {.code = below(2) * 3});
    } else if (step > 100 && below(8) == 0) {
      apply(policy_.interrupted(SIGINT, now_));
    } else if (const auto deadline = policy_.deadline()) {
      now_ = *deadline;
      apply(policy_.check(now_));
    }
  }

  void end(Target who, ExitStatus status) {
    alive_.erase(who);
    killed_.erase(who);
    apply(policy_.exited(who, status, Finished::kNo, now_));
  }

  void bury() {
    while (!killed_.empty() && !over_) {
      end(*killed_.begin(), {.signal = SIGKILL});
    }
  }

  void apply(const Decisions& decisions) {
    for (const Decision& decision : decisions) {
      EXPECT_FALSE(over_) << "nothing follows the end";
      if (const auto* start = std::get_if<StartProcess>(&decision)) {
        EXPECT_TRUE(alive_.insert(start->who).second) << "started twice";
      } else if (const auto* signal = std::get_if<SendSignal>(&decision)) {
        EXPECT_TRUE(alive_.contains(signal->who)) << "a signal for nobody";
        if (signal->signal == SIGKILL) {
          killed_.insert(signal->who);
        }
      }
      over_ |= std::holds_alternative<EndJob>(decision);
    }
  }

  std::minstd_rand random_;
  RestartPolicy policy_;
  TimePoint now_{std::chrono::hours(1)};
  std::set<Target> alive_;
  std::set<Target> killed_;
  bool over_ = false;
};

TEST(RestartPolicyRandom, EveryJobReachesItsEndAndLeavesNobody) {
  for (unsigned seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE(seed);
    RandomJob(seed).run();
  }
}

// ---- why the job ends and nobody is started again -------------------------------------------------------------------------

Failed only_failure(const Decisions& decisions) {
  for (const Decision& decision : decisions) {
    if (const auto* failure = std::get_if<Failed>(&decision)) {
      return *failure;
    }
  }
  ADD_FAILURE() << "no failure among " << decisions.size() << " decisions";
  return {};
}

TEST_F(RestartPolicyTest, WhatCanOnlyFailAgainIsNotRestartedAndTheOthersHearWhy) {
  for (const Target who : {worker(1), server(0)}) {
    make(2, 1);
    const Decisions decisions = policy_->exited(who, {.code = 1}, Finished::kNo, now_, "another model");
    const Failed failure = only_failure(decisions);
    EXPECT_EQ(failure.consequence, Failed::Consequence::kEndsJob);
    EXPECT_EQ(failure.no_restart, Failed::NoRestart::kHopeless);
    EXPECT_EQ(failure.hopeless, "another model");
    EXPECT_EQ(std::get<AbortJob>(decisions.at(1)).reason, to_text(who) + " failed: another model");
  }
}

TEST_F(RestartPolicyTest, WithoutServersTooWhatCanOnlyFailAgainEndsTheJob) {
  make(2, 0);
  EXPECT_EQ(only_failure(policy_->exited(worker(0), {.code = 1}, Finished::kNo, now_, "no server")).no_restart,
            Failed::NoRestart::kHopeless);
}

TEST_F(RestartPolicyTest, AFailureAfterAllHaveFinishedIsNotBlamedOnTheLimit) {
  options_.worker_restarts = 1000;
  make(2, 1);
  EXPECT_EQ(only_failure(policy_->exited(worker(0), {.code = 3}, Finished::kYes, now_)).no_restart,
            Failed::NoRestart::kAllFinished);
  options_.worker_restarts = 0;
  make(2, 1);
  EXPECT_EQ(only_failure(policy_->exited(worker(0), {.code = 3}, Finished::kNo, now_)).no_restart,
            Failed::NoRestart::kNoneLeft);
}

}  // namespace
}  // namespace downpour::launch
