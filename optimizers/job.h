#pragma once

#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "csrc/ps/protocol_member.h"
#include "optimizers/samples.h"

namespace downpour::optimizers {

// What DownpourSGD and Samples ask of the world they are in: a world of one (embedded_job.h) or servers (server_job.h).
// Threads: the training loop's; gradient_ready also autograd's, while the loop waits in backward.
class Job {
 public:
  virtual ~Job() = default;

  // overlap: this parameter's gradient is complete and may leave. Must not throw for trouble outside; step() tells of it.
  virtual void gradient_ready(std::size_t index) { (void)index; }
  // What has left since the last step is worth nothing: step() failed. Nothing where nothing has. Never throws.
  virtual void forget_gradients() {}
  virtual void step() = 0;
  virtual void fetch() = 0;
  virtual void finish() = 0;

  virtual int rank() const { return 0; }
  virtual int world_size() const { return 1; }
  virtual std::string transport() const = 0;
  virtual void report_loss(double loss) { (void)loss; }
  virtual void report_samples(std::int64_t samples) { (void)samples; }

  // ---- for Samples
  virtual void agree_samples(std::int64_t size, std::int64_t lease_samples, const SamplesOptions& options) = 0;
  virtual std::optional<ps::Lease> next_lease() = 0;  // nullopt: all epochs are done

  virtual void save(torch::serialize::OutputArchive& archive) const = 0;
  virtual void load(torch::serialize::InputArchive& archive) = 0;
};

}  // namespace downpour::optimizers
