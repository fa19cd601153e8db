#pragma once

#include <optional>
#include <string>
#include <vector>

#include "csrc/base/environment.h"
#include "csrc/ps/lease_book.h"
#include "csrc/ps/member.h"
#include "optimizers/job.h"
#include "optimizers/replica.h"

namespace downpour::optimizers {

// A world of one: the rule runs on the parameters and the optimizer's state where they lie; nothing is copied while every push
// is followed by a pull. Where parameters wait for a pull, or take local steps, the values that count are kept beside them.
// prefetch has nothing to overlap here and changes nothing; buffers are the program's own. Under a launcher it says there how far
// it is; nothing else is asked of the job.
class EmbeddedJob final : public Job {
 public:
  // Errors: CommError when the launcher that the environment names cannot be reached.
  EmbeddedJob(Replica& replica, const Environment& environment);

  void step() override;
  void fetch() override;
  void finish() override;
  std::string transport() const override { return "embedded"; }
  void report_loss(double loss) override { progress_.loss = loss; }
  void report_samples(std::int64_t samples) override { progress_.samples += samples; }

  void agree_samples(std::int64_t size, std::int64_t lease_samples, const SamplesOptions& options) override;
  std::optional<ps::Lease> next_lease() override;

  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  bool sums() const { return replica_.options().n_push() > 1; }
  void gather();
  const torch::Tensor& gradient(std::size_t index) const;
  const torch::Tensor& values(std::size_t index) const;
  double clip_scale();
  void push();
  void report();

  Replica& replica_;
  std::vector<torch::Tensor> values_;  // empty: the parameters themselves hold the values
  std::optional<ps::LeaseBook> book_;
  std::optional<ps::Member> member_;  // under a launcher
  TimePoint joined_{};                // again
  ps::Progress progress_;
};

}  // namespace downpour::optimizers
