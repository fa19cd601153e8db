#pragma once

#include <cstddef>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "csrc/base/environment.h"
#include "optimizers/job.h"
#include "optimizers/replica.h"
#include "optimizers/session.h"
#include "optimizers/shared_buffers.h"

namespace downpour::optimizers {

// A worker of a job with parameter servers: agrees with the other workers on the model, offers the initial values (rank 0),
// adopts the job's, then pushes and pulls as the options say. `replica` outlives it.
// Errors: as Session's; c10::Error for the caller's mistakes, before anything has left.
class ServerJob final : public Job {
 public:
  ServerJob(Replica& replica, const Environment& environment,
            transport::SharedMemory shared_memory = transport::SharedMemory::kAuto);

  void gradient_ready(std::size_t index) override;
  void forget_gradients() override;
  void step() override;
  void fetch() override;
  void finish() override;

  int rank() const override { return session_.rank(); }
  int world_size() const override { return session_.world_size(); }
  std::string transport() const override { return client().medium(); }
  void report_loss(double loss) override { progress_.loss = loss; }
  void report_samples(std::int64_t samples) override { progress_.samples += samples; }

  void agree_samples(std::int64_t size, std::int64_t lease_samples, const SamplesOptions& options) override;
  std::optional<ps::Lease> next_lease() override { return session_.next_lease(); }

  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  // Whether the step's own gradient is to be added to the sum of the steps before, or is in it already.
  enum class Newest { kApart, kSummed };

  ps::Client& client() { return session_.client(); }
  const ps::Client& client() const { return session_.client(); }
  std::size_t parameters() const { return replica_.trainable().size(); }
  bool is_synchronous() const;
  // What all wait for in a synchronous step: that everybody has pushed, then that everybody has pulled.
  enum class Half { kPushed, kPulled };
  void meet_others(Half half);
  std::int64_t ticks_per_step() const { return replica_.options().warm_up_steps() > 0 ? 2 : 1; }
  void offer_values();

  void check_gradients() const;
  void hold_back();
  torch::Tensor outgoing(std::size_t index, Newest newest) const;
  void begin_push();
  void send(std::size_t index, const torch::Tensor& gradient);
  std::vector<ps::Hyper> complete_push(Newest newest);
  void end_push(const std::vector<ps::Hyper>& groups);
  std::vector<ps::Hyper> scaled_groups();

  void adopt();
  void adopt_slice(const ps::Slice& slice, std::int64_t begin, std::int64_t count, const void* source);
  void complete_step(bool fetches);
  void complete_synchronous_step();
  void note_verdicts();
  void settle();
  void report();

  Replica& replica_;
  SharedBuffers buffers_;
  Session session_;
  ps::Progress progress_;
  bool push_begun_ = false;
  std::vector<bool> sent_;      // by parameter: its gradient has left with the push that has begun
  double squared_norm_ = 0;     // of what has left with it; under max_grad_norm only
  std::exception_ptr trouble_;  // met in a hook; step() raises it
  bool warned_refused_ = false;
};

}  // namespace downpour::optimizers
