// A worker under `downpour run` that checks itself. usage: train_worker CASE [tcp, or a FIFO]
// With one worker its training must equal torch::optim's, or a world of one's, bit for bit; the exit status says so.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <map>
#include <sstream>
#include <thread>

#include "csrc/base/checksum.h"
#include "optimizers/downpour_sgd.h"
#include "tests/optimizers/meet.h"
#include "tests/optimizers/models.h"
#include "tests/optimizers/over_tcp.h"

namespace {

using namespace downpour;
using torch::Tensor;
using torch::optim::SGDOptions;

// What comes after it is made is a world of one, whatever the launcher said.
void leave_the_launcher() {
  for (const char* name :
       {"DOWNPOUR_ROLE", "DOWNPOUR_COORDINATOR", "DOWNPOUR_JOB", "DOWNPOUR_SERVERS", "RANK", "WORLD_SIZE"}) {
    ::unsetenv(name);
  }
}

int verdict(bool equal, const std::string& transport) {
  std::cout << (equal ? "equal over " : "DIFFERENT over ") << transport << std::endl;
  return equal ? 0 : 1;
}

// ---- one worker: the same as torch::optim ---------------------------------------------------------------------------

std::vector<torch::optim::OptimizerParamGroup> groups_of(testing::Mlp& net) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(net.first->parameters(), std::make_unique<SGDOptions>(SGDOptions(0.2).momentum(0.5)));
  groups.emplace_back(net.second->parameters(), std::make_unique<SGDOptions>(SGDOptions(0.02).weight_decay(0.1)));
  return groups;
}

template <typename Optimizer>
int compare_loops(Optimizer& ours, testing::Mlp& net, torch::optim::Optimizer& theirs, testing::Mlp& reference,
                  const testing::Loop& loop) {
  testing::train(reference, theirs, loop);
  testing::train(net, ours, loop);
  const std::string transport = ours.transport();
  ours.finish();
  return verdict(testing::bitwise_equal(net.parameters(), reference.parameters()), transport);
}

int compare_mlp(const testing::Loop& loop, bool grouped, bool tcp) {
  const auto net = testing::make_mlp();
  const auto reference = testing::make_mlp();
  const auto rule = SGDOptions(0.1).momentum(0.9).weight_decay(0.01);
  torch::optim::SGD sgd =
      grouped ? torch::optim::SGD(groups_of(*reference), rule) : torch::optim::SGD(reference->parameters(), rule);
  if (tcp) {
    testing::OverTcp ours(grouped ? optimizers::Training::of(groups_of(*net)) : optimizers::Training::of(*net), rule,
                          {});
    return compare_loops(ours, *net, sgd, *reference, loop);
  }
  const auto ours =
      grouped ? std::make_unique<DownpourSGD>(groups_of(*net), rule) : std::make_unique<DownpourSGD>(*net, rule);
  return compare_loops(*ours, *net, sgd, *reference, loop);
}

// The servers' rule does not round as a device does.
bool close(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  bool all = a.size() == b.size();
  for (std::size_t i = 0; all && i < a.size(); ++i) {
    all = torch::allclose(a[i], b[i], 1e-4, 1e-5);
  }
  return all;
}

int compare_on_device(const DownpourOptions& options, const testing::Loop& loop) {
  const auto net = testing::make_mlp();
  const auto reference = testing::make_mlp();
  net->to(torch::kCUDA);
  const auto rule = SGDOptions(0.1).momentum(0.9).weight_decay(0.01);
  DownpourSGD ours(*net, rule, options);
  testing::train(*net, ours, loop);
  const std::string transport = ours.transport();
  ours.finish();
  leave_the_launcher();
  DownpourSGD alone(*reference, rule, DownpourOptions(options).overlap(false));
  testing::train(*reference, alone, loop);
  alone.finish();
  net->to(torch::kCPU);
  return verdict(close(net->parameters(), reference->parameters()), transport);
}

template <typename Optimizer>
void train_zoo(const testing::Zoo& zoo, Optimizer& optimizer) {
  for (std::int64_t step = 0; step < 8; ++step) {
    optimizer.zero_grad();
    zoo.loss(step).backward();
    optimizer.step();
  }
}

int compare_zoo(bool tcp) {
  testing::Zoo zoo, reference;
  const auto rule = SGDOptions(0.1).momentum(0.8).nesterov(true);
  torch::optim::SGD sgd(reference.parameters, rule);
  train_zoo(reference, sgd);
  std::string transport;
  if (tcp) {
    testing::OverTcp ours(optimizers::Training::of(zoo.parameters), rule, {});
    train_zoo(zoo, ours);
    transport = ours.transport();
  } else {
    DownpourSGD ours(zoo.parameters, rule);
    train_zoo(zoo, ours);
    transport = ours.transport();
  }
  return verdict(testing::bitwise_equal(zoo.parameters, reference.parameters), transport);
}

// ---- one worker: the same as a world of one -------------------------------------------------------------------------

// Overlap is only for the one with servers: it must not make a difference.
int compare_worlds(const DownpourSGD::Rule& rule, const DownpourOptions& options,
                   const testing::Loop& loop = {.steps = 11}) {
  const auto net = testing::make_mlp();
  const auto reference = testing::make_mlp();
  DownpourSGD ours(*net, rule, options);
  leave_the_launcher();
  DownpourSGD alone(*reference, rule, DownpourOptions(options).overlap(false));
  testing::train(*net, ours, loop);
  testing::train(*reference, alone, loop);
  bool equal = testing::bitwise_equal(net->parameters(), reference->parameters());
  const std::string transport = ours.transport();
  ours.finish();
  alone.finish();
  equal &= testing::bitwise_equal(net->parameters(), reference->parameters()) && alone.transport() == "embedded";
  equal &= std::abs(ours.stats().gradient_norm - alone.stats().gradient_norm) <= 1e-6 * alone.stats().gradient_norm;
  return verdict(equal, transport);
}

// One parameter whose gradient is 1, learning rate 1: values lag one step behind, and finish() brings the last.
int walk_with_prefetch() {
  Tensor p = torch::zeros({1}).requires_grad_(true);
  DownpourSGD downpour(std::vector<Tensor>{p}, SGDOptions(1), DownpourOptions().prefetch(true));
  std::vector<double> values;
  for (int step = 0; step < 4; ++step) {
    downpour.zero_grad();
    p.sum().backward();
    downpour.step();
    values.push_back(p.item<double>());
  }
  downpour.finish();
  values.push_back(p.item<double>());
  const bool one_stale = downpour.stats().mean_staleness == 1;
  return verdict(values == std::vector<double>{0, -1, -2, -3, -4} && one_stale, downpour.transport());
}

// What a child does to its copy of the optimizer is nothing to the parent's.
int fork_a_child() {
  const auto net = testing::make_mlp();
  const auto reference = testing::make_mlp();
  torch::optim::SGD sgd(reference->parameters(), SGDOptions(0.1));
  auto ours = std::make_unique<DownpourSGD>(*net, SGDOptions(0.1));
  testing::train(*net, *ours, {.steps = 3});
  const pid_t child = ::fork();
  if (child == 0) {
    bool named = false;
    try {
      ours->step();
    } catch (const c10::Error& error) {
      named = std::string(error.what()).find("forked child of process") != std::string::npos;
    }
    ours.reset();
    ::_exit(named ? 0 : 1);
  }
  int status = 1;
  ::waitpid(child, &status, 0);
  testing::train(*net, *ours, {.steps = 3, .first_batch = 3});
  ours->finish();
  testing::train(*reference, sgd, {.steps = 6});
  return verdict(status == 0 && testing::bitwise_equal(net->parameters(), reference->parameters()), ours->transport());
}

// The hooks of the child's copy fire in its backward; nothing of it may reach the parent's connections.
int fork_a_child_under_overlap() {
  const auto net = testing::make_mlp();
  const auto reference = testing::make_mlp();
  torch::optim::SGD sgd(reference->parameters(), SGDOptions(0.1));
  DownpourSGD ours(*net, SGDOptions(0.1), DownpourOptions().overlap(true));
  testing::train(*net, ours, {.steps = 3});
  const pid_t child = ::fork();
  if (child == 0) {
    for (int backward = 0; backward < 3; ++backward) {
      net->zero_grad();
      (1000 * net->first->weight.sum() + net->second->weight.sum()).backward();
    }
    ::_exit(0);
  }
  int status = 1;
  ::waitpid(child, &status, 0);
  testing::train(*net, ours, {.steps = 3, .first_batch = 3});
  ours.finish();
  testing::train(*reference, sgd, {.steps = 6});
  return verdict(status == 0 && testing::bitwise_equal(net->parameters(), reference->parameters()), ours.transport());
}

// What this process has that an optimizer could leave behind.
struct Footprint {
  std::size_t threads = 0, descriptors = 0, segments = 0;
  bool operator==(const Footprint&) const = default;

  static std::size_t count(const char* folder) {
    return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(folder), {}));
  }
  static Footprint now() {
    Footprint result{count("/proc/self/task"), count("/proc/self/fd"), 0};
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
      result.segments += line.find("memfd:") != std::string::npos ? 1 : 0;
    }
    return result;
  }
};

// The module goes on under torch::optim as if there had been no Downpour.
int destroy() {
  const auto net = testing::make_mlp();
  const auto reference = testing::make_mlp();
  testing::train(*net, *std::make_unique<torch::optim::SGD>(net->parameters(), SGDOptions(0)), {.steps = 1});
  const Footprint before = Footprint::now();
  std::vector<void*> storages;
  for (const Tensor& p : net->parameters()) {
    storages.push_back(p.data_ptr());
  }
  std::string transport;
  bool restored = true;
  {
    DownpourSGD ours(*net, SGDOptions(0.1), DownpourOptions().overlap(true));
    testing::train(*net, ours, {.steps = 3});
    transport = ours.transport();
    const Footprint during = Footprint::now();
    restored &=
        during.threads > before.threads && during.descriptors > before.descriptors && during.segments > before.segments;
  }
  restored &= Footprint::now() == before;
  for (std::size_t i = 0; i < storages.size(); ++i) {
    const Tensor p = net->parameters()[i];
    restored &= p.data_ptr() == storages[i] && p.is_leaf() && p.requires_grad();
    const auto* const meta = torch::autograd::impl::get_autograd_meta(p);
    const auto accumulator = meta->grad_accumulator_.lock();
    restored &= accumulator == nullptr || accumulator->tensor_post_acc_grad_hooks() == nullptr;
  }
  torch::optim::SGD sgd(net->parameters(), SGDOptions(0.1)), other(reference->parameters(), SGDOptions(0.1));
  testing::train(*net, sgd, {.steps = 3, .first_batch = 3});
  testing::train(*reference, other, {.steps = 6});
  return verdict(restored && testing::bitwise_equal(net->parameters(), reference->parameters()), transport);
}

// Bytes of shared memory that this process has touched.
std::int64_t touched_bytes() {
  std::ifstream maps("/proc/self/smaps");
  std::int64_t kilobytes = 0;
  bool shared = false;
  for (std::string line; std::getline(maps, line);) {
    if (line.find('-') < line.find(' ')) {
      shared = line.find("memfd:") != std::string::npos;
    } else if (shared && line.rfind("Rss:", 0) == 0) {
      kilobytes += std::atoll(line.c_str() + 4);
    }
  }
  return kilobytes * 1024;
}

// Under overlap a gradient is in the servers' memory when backward() returns, otherwise after step() only.
int leave_early() {
  const Tensor p = torch::zeros({1 << 20}).requires_grad_(true);
  std::vector<bool> left;
  std::string transport;
  for (const bool overlap : {false, true}) {
    DownpourSGD ours(std::vector<Tensor>{p}, SGDOptions(1), DownpourOptions().overlap(overlap));
    const std::int64_t before = touched_bytes();
    p.sum().backward();
    left.push_back(touched_bytes() - before >= static_cast<std::int64_t>(p.nbytes()));
    ours.step();
    left.push_back(touched_bytes() - before >= static_cast<std::int64_t>(p.nbytes()));
    ours.zero_grad();
    transport = ours.transport();
  }
  return verdict(left == std::vector<bool>{false, true, true, true}, transport);
}

// The only server of the job: what else the launcher has started.
pid_t server_beside_us() {
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::ifstream status(entry.path() / "status"), words(entry.path() / "cmdline");
    std::string command;
    std::getline(words, command);
    for (std::string line; std::getline(status, line);) {
      if (line == "PPid:\t" + std::to_string(::getppid()) && command.rfind("downpour", 0) == 0) {
        return std::atoi(entry.path().filename().c_str());
      }
    }
  }
  return -1;
}

// None of its threads runs any more, which comes a moment after the signal.
void stop(pid_t process) {
  ::kill(process, SIGSTOP);
  const std::filesystem::path threads = "/proc/" + std::to_string(process) + "/task";
  for (const auto& thread : std::filesystem::directory_iterator(threads)) {
    for (std::string line; line.find(") T") == std::string::npos;) {
      std::ifstream stat(thread.path() / "stat");
      std::getline(stat, line);
    }
  }
}

// A step that meets a server which stands still ends in time; its push counts, once, when the server goes on.
int outwait() {
  Tensor p = torch::zeros({4}).requires_grad_(true);
  DownpourSGD downpour(std::vector<Tensor>{p}, SGDOptions(1),
                       DownpourOptions().call_deadline(std::chrono::milliseconds(500)));
  const pid_t server = server_beside_us();
  TORCH_CHECK(server > 0, "no server beside us");
  std::vector<std::int64_t> steps;
  bool named = false;
  for (int step = 0; step < 4; ++step) {
    downpour.zero_grad();
    p.sum().backward();
    if (step == 1) {
      stop(server);
    }
    try {
      downpour.step();
    } catch (const TimeoutError& error) {
      std::cout << "step " << step << ": " << error.what() << std::endl;
      named |= step == 1 && std::string(error.what()).find("shard 0") != std::string::npos;
    }
    ::kill(server, SIGCONT);
    steps.push_back(downpour.stats().step);
  }
  downpour.finish();
  const bool once = torch::equal(p.detach(), torch::full({4}, -4.0)) && steps == std::vector<std::int64_t>{1, 2, 3, 4};
  return verdict(named && once, downpour.transport());
}

// Under servers an archive holds the groups' options; another optimizer of ours, or torch::optim's, takes them from there.
int save_and_load() {
  const auto net = testing::make_mlp();
  DownpourSGD ours(*net, SGDOptions(0.1).momentum(0.9));
  testing::train(*net, ours, {.steps = 2});
  ours.param_groups()[0].options().set_lr(0.025);
  std::stringstream file;
  torch::save(ours, file);
  torch::optim::SGD theirs(testing::make_mlp()->parameters(), SGDOptions(1));
  torch::load(theirs, file);
  bool taken = theirs.param_groups()[0].options().get_lr() == 0.025;
  taken &= static_cast<SGDOptions&>(theirs.param_groups()[0].options()).momentum() == 0.9;
  ours.param_groups()[0].options().set_lr(7);
  file.clear();
  file.seekg(0);
  torch::load(ours, file);
  taken &= ours.param_groups()[0].options().get_lr() == 0.025;
  testing::train(*net, ours, {.steps = 2});
  ours.finish();
  return verdict(taken, ours.transport());
}

// report_loss, report_samples and fetch() from the training loop; the launcher's summary is looked at outside. Given a FIFO it
// waits before the end for a line there. Two steps after a pull its values are those of the pull; fetch() brings what the two
// have made of them.
int report(const std::string& fifo) {
  const auto net = testing::make_mlp(), stale = testing::make_mlp();
  DownpourSGD ours(*net, SGDOptions(0.1), DownpourOptions().n_fetch(3));
  torch::optim::SGD sgd(stale->parameters(), SGDOptions(0.1));
  for (int step = 0; step < 8; ++step) {
    testing::train(*net, ours, {.steps = 1, .first_batch = step});
    (testing::loss_of(*stale, testing::make_batch(step))).backward();  // of the values that the pulls leave
    if (step == 2 || step == 5 || step == 7) {
      sgd.step();
      sgd.zero_grad();
    }
    ours.report_loss(0.75);
    ours.report_samples(8);
  }
  if (!fifo.empty()) {
    std::string line;
    std::ifstream gate(fifo);
    std::getline(gate, line);
  }
  const bool waits = !close(stale->parameters(), net->parameters());
  ours.fetch();
  const bool fetched = close(stale->parameters(), net->parameters());
  ours.finish();
  return verdict(waits && fetched, ours.transport());
}

// Worker 1 stands still after its first step: worker 0 goes on up to the bound, and no further before it is released.
int lead() {
  constexpr std::int64_t kLead = 2;
  const bool first = std::string(::getenv("RANK")) == "0";
  const auto net = testing::make_mlp();
  DownpourSGD downpour(*net, SGDOptions(0.1), DownpourOptions().max_lead(kLead));
  testing::meet("joined", first);  // the clock is that of those who are there
  std::atomic<std::int64_t> done{0}, stood_at{-1};
  std::thread release([&] {
    while (first && (done == 0 || done != stood_at)) {
      stood_at.store(done);
      std::this_thread::sleep_for(std::chrono::seconds(1));
    }
    if (first) {
      testing::meet("released", true);
    }
  });
  for (int step = 0; step < 10; ++step) {
    if (!first && step == 1) {
      testing::meet("released", false);
    }
    testing::train(*net, downpour, {.steps = 1, .first_batch = step});
    ++done;
  }
  release.join();
  downpour.finish();
  std::cout << "stood at " << stood_at << std::endl;
  return 0;
}

// At SIGUSR2, which the launcher hands on, it says where all its threads are and goes on: meanwhile it waits for a line at a FIFO.
int print_stacks(const std::string& fifo) {
  const auto net = testing::make_mlp();
  DownpourSGD ours(*net, SGDOptions(0.1));
  std::cout << "waits" << std::endl;
  std::string line;
  std::ifstream gate(fifo);
  std::getline(gate, line);
  testing::train(*net, ours, {.steps = 3});
  ours.finish();
  return 0;
}

int refuse_nan() {
  Tensor p = torch::zeros({40}).requires_grad_(true);
  DownpourSGD downpour(std::vector<Tensor>{p}, SGDOptions(1));
  (p * std::nan("")).sum().backward();
  downpour.step();
  const bool refused = downpour.stats().refused > 0;
  const bool kept = torch::equal(p.detach(), torch::zeros({40}));
  downpour.zero_grad();
  p.sum().backward();
  downpour.step();
  const bool goes_on = torch::equal(p.detach(), torch::full({40}, -1.0));
  downpour.finish();
  return verdict(refused && kept && goes_on, downpour.transport());
}

std::shared_ptr<testing::Mlp> make_normed() {
  torch::manual_seed(5);
  return std::make_shared<testing::Mlp>(torch::nn::BatchNorm1d(16));
}

// One worker's own changes come back to it whole, up to rounding; several end with one set.
int share_buffers() {
  const auto net = make_normed();
  const auto reference = make_normed();
  DownpourSGD downpour(*net, SGDOptions(0.05), DownpourOptions().buffers(BufferPolicy::kShared).n_push(2));
  const bool single = downpour.world_size() == 1;
  testing::train(*net, downpour, {.steps = 9, .first_batch = 100 * downpour.rank()});
  downpour.finish();
  leave_the_launcher();
  DownpourSGD alone(*reference, SGDOptions(0.05), DownpourOptions().n_push(2));
  testing::train(*reference, alone, {.steps = 9});
  alone.finish();
  std::cout << "buffers " << checksum(std::as_bytes(std::span(net->norm->running_mean.data_ptr<float>(), 16)))
            << std::endl;
  const bool close = torch::allclose(net->norm->running_var, reference->norm->running_var, 1e-5, 1e-6);
  return !single || close ? 0 : 1;
}

// ---- several workers --------------------------------------------------------------------------------------------------

std::uint64_t checksum_of(testing::Mlp& net) {
  Checksum sum;
  for (const Tensor& p : net.parameters()) {
    sum.add({static_cast<const std::byte*>(p.const_data_ptr()), static_cast<std::size_t>(p.nbytes())});
  }
  return sum.value();
}

int converge(const DownpourOptions& options) {
  const auto net =
      testing::make_mlp(7 + static_cast<std::uint64_t>(::atoi(::getenv("RANK"))));  // rank 0's values count
  DownpourSGD downpour(*net, torch::optim::AdagradOptions(0.1), options);
  std::cout << "initial " << checksum_of(*net) << std::endl;
  for (std::int64_t step = 0; step < 80; ++step) {
    testing::train(*net, downpour, {.steps = 1, .first_batch = step * downpour.world_size() + downpour.rank()});
    if (step < options.warm_up_steps()) {
      std::cout << "step " << step << ' ' << checksum_of(*net) << std::endl;
    }
  }
  downpour.finish();
  const torch::NoGradGuard no_grad;
  const double loss = testing::loss_of(*net, testing::make_batch(5000, 256)).item<double>();
  std::cout << "final " << checksum_of(*net) << std::endl;
  std::cout << "loss " << loss << " staleness " << downpour.stats().mean_staleness << std::endl;
  return loss < 0.5 ? 0 : 1;
}

// What both workers' synchronous steps are together: one of the mean gradient.
class MeanSteps {
 public:
  void step(std::int64_t number) {
    sgd_.zero_grad();
    for (const std::int64_t batch : {2 * number, 2 * number + 1}) {
      (testing::loss_of(*net_, testing::make_batch(batch)) / 2).backward();
    }
    sgd_.step();
  }
  bool equal(const testing::Mlp& net) const { return close(net_->parameters(), net.parameters()); }

 private:
  std::shared_ptr<testing::Mlp> net_ = testing::make_mlp();
  torch::optim::SGD sgd_{net_->parameters(), SGDOptions(0.1)};
};

// Worker 1 dies half-way through the warm-up. It comes back while worker 0 waits, and they go on with the other half together.
int warm_up_with_a_death() {
  constexpr std::int64_t kSteps = 6, kDeath = 3;
  const std::int64_t rank = ::atoi(::getenv("RANK"));
  const bool back = std::string(::getenv("DOWNPOUR_RESTARTS")) != "0";
  const auto net = testing::make_mlp(7 + static_cast<std::uint64_t>(rank));
  DownpourSGD downpour(*net, SGDOptions(0.1), DownpourOptions().warm_up_steps(kSteps));
  MeanSteps expected;
  bool equal = true;
  for (std::int64_t step = 0; step < kSteps; ++step) {
    if (step == kDeath && rank == 1 && !back) {
      ::raise(SIGKILL);
    }
    if (step == kDeath) {
      testing::meet("back", rank == 0);
      equal &= expected.equal(*net);
    }
    if (step >= kDeath || !back) {
      testing::train(*net, downpour, {.steps = 1, .first_batch = 2 * step + rank});
    }
    expected.step(step);
    equal &= (back && step < kDeath) || expected.equal(*net);
  }
  downpour.finish();
  return verdict(equal, downpour.transport());
}

// One parameter whose gradient is 1, learning rate 1. Worker 1 begins when worker 0 has made its steps, neither before nor later.
int warm_start() {
  constexpr int kSteps = 5;
  const bool first = std::string(::getenv("RANK")) == "0";
  Tensor p = torch::zeros({1}).requires_grad_(true);
  DownpourSGD downpour(std::vector<Tensor>{p}, SGDOptions(1), DownpourOptions().warm_start_steps(kSteps).max_lead(1));
  bool right = first || p.item<double>() == -kSteps;
  for (int step = 0; step < 2 * kSteps; ++step) {
    if (step == (first ? kSteps : 0)) {
      testing::meet("begun", first);
    }
    downpour.zero_grad();
    p.sum().backward();
    downpour.step();
  }
  downpour.finish();
  right &= p.item<double>() == -4 * kSteps;
  return verdict(right, downpour.transport());
}

// Worker 1 has pushed and is stopped while it waits for worker 0, until it is fenced. What it has pushed counts, and it goes on
// where the others are.
int warm_up_with_a_stop() {
  constexpr std::int64_t kSteps = 6, kStop = 3;
  const std::int64_t rank = ::atoi(::getenv("RANK"));
  const auto net = testing::make_mlp(7 + static_cast<std::uint64_t>(rank));
  DownpourSGD downpour(*net, SGDOptions(0.1), DownpourOptions().warm_up_steps(kSteps));
  MeanSteps expected;
  bool equal = true;
  std::thread stop;
  for (std::int64_t step = 0; step < kSteps; ++step) {
    if (step == kStop && rank == 1) {
      stop = std::thread([] {
        std::this_thread::sleep_for(std::chrono::milliseconds(500));
        std::cout << "stopped " << ::getpid() << std::endl;
        ::raise(SIGSTOP);
        testing::meet("back", false);
      });
    } else if (step == kStop) {
      testing::meet("back", true);
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
    }
    testing::train(*net, downpour, {.steps = 1, .first_batch = 2 * step + rank});
    expected.step(step);
    equal &= expected.equal(*net);
  }
  if (stop.joinable()) {
    stop.join();
  }
  downpour.finish();
  return verdict(equal, downpour.transport());
}

int differ() {
  torch::nn::Sequential net(torch::nn::Linear(4, 8), torch::nn::Linear(8, ::atoi(::getenv("RANK")) == 0 ? 2 : 3));
  DownpourSGD downpour(*net, SGDOptions(0.1));
  downpour.finish();
  return 0;
}

int need_servers() {
  const auto net = testing::make_mlp();
  DownpourSGD downpour(*net, SGDOptions(0.1));
  return 0;
}

// A program that catches what it gets, and ends with `code`.
int need_servers_and_catch(int code) {
  try {
    return need_servers();
  } catch (const std::exception& error) {
    std::cerr << "caught: " << error.what() << '\n';
    return code;
  }
}

int need_servers_without_a_launcher() {
  leave_the_launcher();
  ::setenv("WORLD_SIZE", "2", 1);
  return need_servers_and_catch(3);
}

}  // namespace

int main(int count, char** arguments) {
  const std::string name = count > 1 ? arguments[1] : "";
  const bool tcp = count > 2 && std::string(arguments[2]) == "tcp";
  const auto adam = torch::optim::AdamOptions(0.01).amsgrad(true);
  const auto sgd = SGDOptions(0.1).momentum(0.9);
  const std::map<std::string, std::function<int()>> cases = {
      {"plain", [&] { return compare_mlp({}, false, tcp); }},
      {"accumulation", [&] { return compare_mlp({.steps = 8, .accumulate = 3}, false, tcp); }},
      {"clipping", [&] { return compare_mlp({.clip_norm = 0.1}, false, tcp); }},
      {"step_lr", [&] { return compare_mlp({.decay_every = 4}, false, tcp); }},
      {"groups", [&] { return compare_mlp({}, true, tcp); }},
      {"all",
       [&] {
         return compare_mlp({.accumulate = 2, .clip_norm = 0.2, .set_to_none = false, .decay_every = 5}, true, tcp);
       }},
      {"zoo", [&] { return compare_zoo(tcp); }},
      {"adam", [&] { return compare_worlds(adam, {}); }},
      {"adamw", [&] { return compare_worlds(torch::optim::AdamWOptions(0.01), {}); }},
      {"adagrad", [&] { return compare_worlds(torch::optim::AdagradOptions(0.1).initial_accumulator_value(0.1), {}); }},
      {"overlap", [&] { return compare_worlds(sgd, DownpourOptions().overlap(true)); }},
      {"overlap_summed", [&] { return compare_worlds(sgd, DownpourOptions().overlap(true).n_push(3)); }},
      {"n_push", [&] { return compare_worlds(adam, DownpourOptions().n_push(3)); }},
      {"n_fetch", [&] { return compare_worlds(sgd, DownpourOptions().n_fetch(3).local_lr(0.05)); }},
      {"n_push_n_fetch", [&] { return compare_worlds(sgd, DownpourOptions().n_push(2).n_fetch(4).local_lr(0.05)); }},
      {"max_grad_norm", [&] { return compare_worlds(sgd, DownpourOptions().max_grad_norm(0.1).n_push(2)); }},
      {"max_grad_norm_overlap",
       [&] { return compare_worlds(sgd, DownpourOptions().max_grad_norm(0.1).overlap(true)); }},
      {"cuda", [&] { return compare_on_device({}, {.accumulate = 2, .clip_norm = 0.2, .decay_every = 5}); }},
      {"cuda_overlap",
       [&] { return compare_on_device(DownpourOptions().overlap(true).n_push(2).max_grad_norm(0.2), {}); }},
      {"cuda_summed",
       [&] { return compare_on_device(DownpourOptions().n_push(3).n_fetch(2).local_lr(0.01), {.steps = 11}); }},
      {"prefetch", walk_with_prefetch},
      {"nan", refuse_nan},
      {"fork", fork_a_child},
      {"fork_overlap", fork_a_child_under_overlap},
      {"destroy", destroy},
      {"save_and_load", save_and_load},
      {"report", [&] { return report(count > 2 ? arguments[2] : ""); }},
      {"lead", lead},
      {"print_stacks", [&] { return print_stacks(count > 2 ? arguments[2] : ""); }},
      {"buffers", share_buffers},
      {"converge", [&] { return converge({}); }},
      {"converge_overlap", [&] { return converge(DownpourOptions().overlap(true).prefetch(true)); }},
      {"converge_bounded", [&] { return converge(DownpourOptions().max_lead(1).max_staleness(20)); }},
      {"warm_start", warm_start},
      {"warm_up", [&] { return converge(DownpourOptions().warm_up_steps(6)); }},
      {"warm_up_with_a_death", warm_up_with_a_death},
      {"warm_up_with_a_stop", warm_up_with_a_stop},
      {"leave_early", leave_early},
      {"outwait", outwait},
      {"differ", differ},
      {"need_servers", need_servers},
      {"need_servers_and_fail", [] { return need_servers_and_catch(3); }},
      {"need_servers_without_a_launcher", need_servers_without_a_launcher},
      {"need_servers_and_go_on", [] { return need_servers_and_catch(0); }},
  };
  const auto found = cases.find(name);
  if (found == cases.end()) {
    std::cerr << "train_worker: no case '" << name << "'\n";
    return 2;
  }
  torch::set_num_threads(1);
  return found->second();
}
