// Asynchronous training of the demo's CNN against the machine's own ceiling: two independent processes side by side.
// usage: bench_async [FOLDER_OF_IMAGES]; with a mode it is one of the processes it starts itself.
#include <downpour/downpour.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "examples/fashion_mnist/fashion.h"

extern char** environ;

namespace {

constexpr int64_t kBatch = 64;
constexpr double kLr = 0.01;
constexpr double kWarm_s = 3, kWindow_s = 8;
constexpr int64_t kEvery = 5000;      // samples between two looks at the accuracy
constexpr double kGoal = 0.88;

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
int64_t faults() {
  rusage self{};
  ::getrusage(RUSAGE_SELF, &self);
  return self.ru_minflt;
}
double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

torch::Tensor loss_of(fashion::Net& net, const fashion::Images& train, const torch::Tensor& indices) {
  return torch::cross_entropy_loss(net(train.x.index_select(0, indices)), train.y.index_select(0, indices));
}

// ---- the processes --------------------------------------------------------------------------------------------------

// Steps for a fixed time; writes "samples/s median_step_ms faults_per_step".
void measure_steps(torch::optim::Optimizer& optimizer, fashion::Net& net, const fashion::Images& train, const std::string& out) {
  const auto indices = torch::randperm(train.x.size(0)).split(kBatch);
  std::vector<double> steps;
  int64_t before = 0;
  double begin = 0;
  const double start = now_s();
  for (std::size_t i = 0; now_s() < start + kWarm_s + kWindow_s; ++i) {
    if (begin == 0 && now_s() > start + kWarm_s) {
      begin = now_s();
      before = faults();
      steps.clear();
    }
    const double step = now_s();
    optimizer.zero_grad();
    loss_of(net, train, indices[i % (indices.size() - 1)]).backward();
    optimizer.step();
    steps.push_back(1e3 * (now_s() - step));
  }
  const double count = static_cast<double>(steps.size());
  std::ofstream(out) << count * kBatch / (now_s() - begin) << ' ' << median(steps) << ' '
                     << static_cast<double>(faults() - before) / count << '\n';
}

struct Copy {
  double seconds;
  std::vector<torch::Tensor> values;
};

void keep(std::vector<Copy>& copies, fashion::Net& net, double start) {
  Copy copy{now_s() - start, {}};
  for (const auto& p : net->parameters()) {
    copy.values.push_back(p.detach().clone());
  }
  copies.push_back(std::move(copy));
}

// Off the clock: the first copy that reaches the goal; a run that never does counts with -1.
double first_good(const std::vector<Copy>& copies, fashion::Net& net, const fashion::Images& test) {
  torch::NoGradGuard no_grad;
  torch::set_num_threads(2);
  for (const auto& copy : copies) {
    auto parameters = net->parameters();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      parameters[i].copy_(copy.values[i]);
    }
    if (fashion::accuracy(net, test) >= kGoal) {
      return copy.seconds;
    }
  }
  return -1;
}

void measure_time_to_accuracy(const std::string& images, int seed, const std::string& out) {
  torch::manual_seed(seed);
  const auto train = fashion::load(images, true), test = fashion::load(images, false);
  fashion::Net net;
  downpour::DownpourSGD optimizer(*net, torch::optim::AdagradOptions(kLr));
  downpour::Samples samples(optimizer, train.x.size(0),
                            downpour::SamplesOptions().batch_size(kBatch).epochs(2).seed(static_cast<uint64_t>(seed)));
  std::vector<Copy> copies;
  int64_t done = 0;
  const double start = now_s();
  while (const auto batch = samples.next()) {
    optimizer.zero_grad();
    loss_of(net, train, batch->indices).backward();
    optimizer.step();
    done += batch->indices.size(0) * optimizer.world_size();
    if (optimizer.rank() == 0 && done / kEvery > static_cast<int64_t>(copies.size())) {
      keep(copies, net, start);
    }
  }
  optimizer.finish();
  if (optimizer.rank() == 0) {
    std::ofstream(out) << first_good(copies, net, test) << '\n';
  }
}

int be_a_process(const std::string& mode, const std::string& images, int seed, const std::string& out) {
  if (mode == "accuracy") {
    measure_time_to_accuracy(images, seed, out);
    return 0;
  }
  torch::manual_seed(seed);
  const auto train = fashion::load(images, true);
  fashion::Net net;
  if (mode == "plain") {
    torch::optim::Adagrad optimizer(net->parameters(), torch::optim::AdagradOptions(kLr));
    measure_steps(optimizer, net, train, out);
  } else {
    downpour::DownpourSGD optimizer(*net, torch::optim::AdagradOptions(kLr));
    measure_steps(optimizer, net, train, out + "." + std::to_string(optimizer.rank()));
    optimizer.finish();
  }
  return 0;
}

// ---- the conductor --------------------------------------------------------------------------------------------------

using Words = std::vector<std::string>;

pid_t start(const Words& words) {
  std::vector<char*> arguments;
  for (const auto& word : words) {
    arguments.push_back(const_cast<char*>(word.c_str()));
  }
  arguments.push_back(nullptr);
  pid_t pid = 0;
  TORCH_CHECK(::posix_spawnp(&pid, arguments[0], nullptr, nullptr, arguments.data(), environ) == 0, "cannot start ", words[0]);
  return pid;
}
void wait_for(pid_t pid) {
  int status = 0;
  ::waitpid(pid, &status, 0);
  TORCH_CHECK(status == 0, "a benchmark process failed with status ", status);
}

struct Conductor {
  std::string self, images, out;

  Words process(const std::string& mode, int seed, const std::string& result) const {
    return {self, images, mode, std::to_string(seed), result};
  }
  Words launched(int servers, int workers, const Words& program) const {
    Words words = {DOWNPOUR_PROGRAM, "run", "--quiet", "--threads", "1", "--servers", std::to_string(servers), "--workers",
                   std::to_string(workers), "--"};
    words.insert(words.end(), program.begin(), program.end());
    return words;
  }
  std::vector<double> numbers(const std::string& path) const {
    std::vector<double> values;
    std::ifstream file(path);
    for (double value = 0; file >> value;) {
      values.push_back(value);
    }
    TORCH_CHECK(!values.empty(), "no result in ", path);
    return values;
  }
  // n plain processes side by side, under the launcher's malloc settings: samples/s of all.
  double plain_rate(int n) const {
    std::vector<pid_t> running;
    for (int i = 0; i < n; ++i) {
      running.push_back(start(launched(0, 1, process("plain", i, out + "." + std::to_string(i)))));
    }
    std::for_each(running.begin(), running.end(), wait_for);
    return sum_of_rates(n);
  }
  double worker_rate(int servers, int n) const {
    wait_for(start(launched(servers, n, process("worker", 1, out))));
    return sum_of_rates(n);
  }
  double sum_of_rates(int n) const {
    double sum = 0;
    for (int i = 0; i < n; ++i) {
      sum += numbers(out + "." + std::to_string(i))[0];
    }
    return sum;
  }
  double time_to_accuracy(int workers, int seed) const {
    wait_for(start(launched(workers == 1 ? 1 : 2, workers, process("accuracy", seed, out))));
    return numbers(out)[0];
  }
};

void print(const std::string& name, double value, const char* unit, const char* peer, double peer_value) {
  std::printf("{\"name\":\"%s\",\"value\":%.3f,\"unit\":\"%s\",\"peer\":\"%s\",\"peer_value\":%.3f,\"ratio\":%.3f}\n", name.c_str(),
              value, unit, peer, peer_value, peer_value != 0 ? value / peer_value : 0);
  std::fflush(stdout);
}

double speed_up_figures(const Conductor& conductor, int repeats) {
  std::vector<double> one, two, alone, beside, ratios;
  for (int i = 0; i < repeats; ++i) {
    one.push_back(conductor.worker_rate(1, 1));
    two.push_back(conductor.worker_rate(2, 2));
    alone.push_back(conductor.plain_rate(1));
    beside.push_back(conductor.plain_rate(2));
    ratios.push_back(two.back() / beside.back());
    std::fprintf(stderr, "samples/s: 1 worker %.0f, 2 workers %.0f, plain %.0f, two plain side by side %.0f\n", one.back(),
                 two.back(), alone.back(), beside.back());
  }
  const double ceiling = median(beside) / median(alone);
  print("async.speedup_2_workers", median(two) / median(one), "x", "two independent processes side by side", ceiling);
  print("async.samples_per_s_2_workers", median(two), "samples/s", "two independent processes side by side", median(beside));
  return ceiling;
}

void accuracy_figures(const Conductor& conductor, int seeds, double ceiling) {
  std::vector<double> one, two;
  for (int seed = 1; seed <= seeds; ++seed) {
    one.push_back(conductor.time_to_accuracy(1, seed));
    two.push_back(conductor.time_to_accuracy(2, seed));
    std::fprintf(stderr, "seconds to %.0f %%, seed %d: 1 worker %.1f, 2 workers %.1f\n", 100 * kGoal, seed, one.back(), two.back());
  }
  print("async.time_to_accuracy_2_workers", median(one) / median(two), "x", "two independent processes side by side", ceiling);
}

// The plain loop as users have it (glibc's defaults), against one worker under the launcher without a server.
void page_fault_figures(const Conductor& conductor, int repeats) {
  std::vector<double> plain_ms, worker_ms, plain_faults, worker_faults;
  for (int i = 0; i < repeats; ++i) {
    Words plain = conductor.process("plain", 1, conductor.out);
    plain.insert(plain.begin(), {"env", "OMP_NUM_THREADS=1"});
    wait_for(start(plain));
    const auto p = conductor.numbers(conductor.out);
    wait_for(start(conductor.launched(0, 1, conductor.process("worker", 1, conductor.out))));
    const auto w = conductor.numbers(conductor.out + ".0");
    plain_ms.push_back(p[1]), plain_faults.push_back(p[2]), worker_ms.push_back(w[1]), worker_faults.push_back(w[2]);
  }
  print("worker.page_faults_per_step", median(worker_faults), "faults", "plain loop, glibc defaults", median(plain_faults));
  print("worker.step_over_plain", median(worker_ms), "ms", "plain loop, glibc defaults", median(plain_ms));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 5) {
    return be_a_process(argv[2], argv[1], std::atoi(argv[3]), argv[4]);
  }
  const auto self = std::filesystem::read_symlink("/proc/self/exe");
  const auto folder = self.parent_path().parent_path() / "demo";
  const Conductor conductor{self.string(), argc > 1 ? argv[1] : (folder / "images").string(), self.string() + ".out"};
  if (!std::filesystem::exists(conductor.images)) {
    std::cerr << "bench_async: no images in " << conductor.images << "; run `make demo` once, or name their folder\n";
    return 1;
  }
  const int repeats = std::getenv("REPEATS") != nullptr ? std::atoi(std::getenv("REPEATS")) : 5;
  page_fault_figures(conductor, repeats);
  const double ceiling = speed_up_figures(conductor, repeats);
  accuracy_figures(conductor, repeats, ceiling);
}
