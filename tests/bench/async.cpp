// Asynchronous training of the demo's CNN: 2 servers and 2 workers beside what the machine can do at most, two independent jobs
// of one process each side by side; and one worker under the launcher beside a plain loop. Batch 64, n_push = n_fetch = 1, one
// thread a worker. "--process MODE IMAGES SEED OUT" makes it one of the processes that it starts itself.
#include <downpour/downpour.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "examples/fashion_mnist/fashion.h"
#include "tests/bench/bench.h"

extern char** environ;

namespace {

using namespace downpour::bench;

constexpr int64_t kBatch = 64;
constexpr double kLr = 0.01;
constexpr double kWarm_s = 7;  // until a worker need not touch new memory to keep its pushes
constexpr double kWindow_s = 5;
constexpr int kRepeats = 5, kPlainRepeats = 3;
constexpr int64_t kEpochs = 2;
constexpr int64_t kEvery = 5000;  // samples between two looks at the accuracy
// Adagrad keeps the large gradients of its first steps for ever; worker 0 makes these alone (DistBelief's warm start).
constexpr int64_t kWarmStartSteps = 50;
constexpr double kGoal = 0.88;

int64_t faults() {
  rusage self{};
  ::getrusage(RUSAGE_SELF, &self);
  return self.ru_minflt + self.ru_majflt;
}

torch::Tensor loss_of(fashion::Net& net, const fashion::Images& train, const torch::Tensor& indices) {
  return torch::cross_entropy_loss(net(train.x.index_select(0, indices)), train.y.index_select(0, indices));
}

downpour::DownpourOptions options() { return downpour::DownpourOptions().n_push(1).n_fetch(1); }

// ---- the processes --------------------------------------------------------------------------------------------------

// Steps for a fixed time; writes "samples/s median_step_ms faults_per_step".
void measure_steps(torch::optim::Optimizer& optimizer, fashion::Net& net, const fashion::Images& train,
                   const std::string& out) {
  const auto indices = torch::randperm(train.x.size(0)).split(kBatch);
  Rounds steps_ms;
  int64_t before = 0;
  double begin = 0;
  const double start = now_s();
  for (std::size_t i = 0; now_s() < start + kWarm_s + kWindow_s; ++i) {
    if (begin == 0 && now_s() > start + kWarm_s) {
      begin = now_s();
      before = faults();
      steps_ms.values.clear();
    }
    const double step = now_s();
    optimizer.zero_grad();
    loss_of(net, train, indices[i % (indices.size() - 1)]).backward();
    optimizer.step();
    steps_ms.add(1e3 * (now_s() - step));
  }
  const double count = static_cast<double>(steps_ms.values.size());
  std::ofstream(out) << count * kBatch / (now_s() - begin) << ' ' << steps_ms.median() << ' '
                     << static_cast<double>(faults() - before) / count << '\n';
}

// Memory of the workers of one job, in a file that the conductor makes anew: worker 0 asks the others to stand still.
struct Gate {
  std::atomic<int> asked{0};        // stand still
  std::atomic<int> standing{0};     // workers that do, or that have left the loop
  std::atomic<int> over{0};         // the goal is reached
  std::atomic<int64_t> samples{0};  // done by all

  static Gate* at(const std::string& path) {
    const downpour::Fd file(::open(path.c_str(), O_RDWR));
    void* memory = ::mmap(nullptr, sizeof(Gate), PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
    TORCH_CHECK(memory != MAP_FAILED, "cannot map ", path);
    return static_cast<Gate*>(memory);
  }
  static void nap() { std::this_thread::sleep_for(std::chrono::microseconds(200)); }
  void stand_still_if_asked() {
    if (asked != 0) {
      ++standing;
      while (asked != 0) {
        nap();
      }
      --standing;
    }
  }
  void stop_others(int others) {
    asked = 1;
    while (standing < others) {
      nap();
    }
  }
};

// Whether the network names enough test images rightly; gives up when too many were wrong.
bool is_good(fashion::Net& net, const fashion::Images& test) {
  const torch::NoGradGuard no_grad;
  const int threads = torch::get_num_threads();
  torch::set_num_threads(static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN)));
  const int64_t count = test.x.size(0);
  const auto allowed = static_cast<int64_t>((1 - kGoal) * static_cast<double>(count) + 0.5);
  int64_t wrong = 0;
  for (int64_t begin = 0; begin < count && wrong <= allowed; begin += 500) {
    const auto guess = net(test.x.narrow(0, begin, 500)).argmax(1);
    wrong += guess.ne(test.y.narrow(0, begin, 500)).sum().item<int64_t>();
  }
  torch::set_num_threads(threads);
  return wrong <= allowed;
}

// Writes "seconds samples" at which the goal was reached; -1 when it never was. Every kEvery samples all workers stand still and
// worker 0 looks at what it has just pulled, off the clock; the wait for the others to stand still is on it.
void measure_time_to_accuracy(const std::string& images, int seed, const std::string& out) {
  torch::manual_seed(seed);
  const auto train = fashion::load(images, true), test = fashion::load(images, false);
  fashion::Net net;
  downpour::DownpourSGD optimizer(*net, torch::optim::AdagradOptions(kLr), options().warm_start_steps(kWarmStartSteps));
  const auto order = downpour::SamplesOptions().batch_size(kBatch).epochs(kEpochs).seed(static_cast<uint64_t>(seed));
  downpour::Samples samples(optimizer, train.x.size(0), order);
  Gate& gate = *Gate::at(out + ".gate");
  int64_t done = 0, looks = 0;
  double reached_s = -1, off_s = 0;
  const double start = now_s();
  while (gate.over == 0) {
    const auto batch = samples.next();
    if (!batch) {
      break;
    }
    optimizer.zero_grad();
    loss_of(net, train, batch->indices).backward();
    optimizer.step();
    done = gate.samples += batch->indices.size(0);
    if (optimizer.rank() != 0) {
      gate.stand_still_if_asked();
    } else if (done / kEvery > looks) {
      ++looks;
      gate.stop_others(optimizer.world_size() - 1);
      const double off = now_s();
      if (is_good(net, test)) {
        reached_s = off - start - off_s;
        gate.over = 1;
      }
      off_s += now_s() - off;
      gate.asked = 0;
    }
  }
  ++gate.standing;  // for good
  optimizer.finish();
  if (optimizer.rank() == 0) {
    std::ofstream(out) << reached_s << ' ' << done << '\n';
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
    downpour::DownpourSGD optimizer(*net, torch::optim::AdagradOptions(kLr), options());
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
  TORCH_CHECK(::posix_spawnp(&pid, arguments[0], nullptr, nullptr, arguments.data(), environ) == 0, "cannot start ",
              words[0]);
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
    return {self, "--process", mode, images, std::to_string(seed), result};
  }
  static Words launched(int servers, int workers, const Words& program) {
    Words words = {
        DOWNPOUR_PROGRAM,        "run", "--quiet", "--threads", "1", "--servers", std::to_string(servers), "--workers",
        std::to_string(workers), "--"};
    words.insert(words.end(), program.begin(), program.end());
    return words;
  }
  static std::vector<double> numbers(const std::string& path) {
    std::vector<double> values;
    std::ifstream file(path);
    for (double value = 0; file >> value;) {
      values.push_back(value);
    }
    TORCH_CHECK(!values.empty(), "no result in ", path);
    file.close();
    std::filesystem::remove(path);
    return values;
  }
  // samples/s of `jobs` jobs side by side, each of one worker in a world of one.
  double rate_alone(int jobs) const {
    std::vector<pid_t> running;
    for (int i = 0; i < jobs; ++i) {
      running.push_back(start(launched(0, 1, process("worker", i + 1, out + "." + std::to_string(i)))));
    }
    std::for_each(running.begin(), running.end(), wait_for);
    double sum = 0;
    for (int i = 0; i < jobs; ++i) {
      sum += numbers(out + "." + std::to_string(i) + ".0")[0];
    }
    return sum;
  }
  // samples/s of one job.
  double rate_together(int servers, int workers) const {
    wait_for(start(launched(servers, workers, process("worker", 1, out))));
    double sum = 0;
    for (int i = 0; i < workers; ++i) {
      sum += numbers(out + "." + std::to_string(i))[0];
    }
    return sum;
  }
  // "samples/s median_step_ms faults_per_step" of the loop as users have it, with glibc's defaults.
  std::vector<double> plain() const {
    Words words = process("plain", 1, out);
    words.insert(words.begin(), {"env", "-u", "GLIBC_TUNABLES", "-u", "MALLOC_MMAP_THRESHOLD_", "-u",
                                 "MALLOC_TRIM_THRESHOLD_", "-u", "MALLOC_TOP_PAD_", "OMP_NUM_THREADS=1"});
    wait_for(start(words));
    return numbers(out);
  }
  std::vector<double> one_worker() const {
    wait_for(start(launched(0, 1, process("worker", 1, out))));
    return numbers(out + ".0");
  }
  struct Reached {
    double seconds, samples;
  };
  Reached time_to_accuracy(int servers, int workers, int seed) const {
    const std::string gate = out + ".gate";
    std::ofstream(gate) << std::string(sizeof(Gate), '\0');
    wait_for(start(launched(servers, workers, process("accuracy", seed, out))));
    std::filesystem::remove(gate);
    const auto found = numbers(out);
    return {found[0] > 0 ? found[0] : std::numeric_limits<double>::infinity(), found[1]};
  }
};

struct Rates {  // samples/s
  Rounds one, together, beside;
};

Rates measure_rates(const Conductor& conductor) {
  Rates rates;
  for (int i = 0; i < kRepeats; ++i) {
    rates.one.add(conductor.rate_alone(1));
    rates.together.add(conductor.rate_together(2, 2));
    rates.beside.add(conductor.rate_alone(2));
    std::fprintf(stderr, "samples/s: 1 worker %.0f, 2 workers %.0f, 2 jobs of 1 worker %.0f\n", rates.one.values.back(),
                 rates.together.values.back(), rates.beside.values.back());
  }
  return rates;
}

constexpr const char* kCeiling = "two independent processes side by side";

void print_rates(const Rates& rates) {
  Line("async.speedup_2_workers", rates.together.over(rates.one), Better::kMore, "x")
      .beside(kCeiling, rates.beside.over(rates.one))
      .ratio_at_least(0.95)
      .print();
  Line("async.samples_per_s_2_workers", rates.together, Better::kMore, "samples/s")
      .beside(kCeiling, rates.beside)
      .add("one_worker", rates.one.median())
      .print();
}

// The ceiling is that of the speed-up, measured before.
void print_time_to_accuracy(const Conductor& conductor, const Rates& rates) {
  Rounds one_s, two_s, one_samples, two_samples, ceiling;
  for (int seed = 1; seed <= kRepeats; ++seed) {
    const auto one = conductor.time_to_accuracy(0, 1, seed), two = conductor.time_to_accuracy(2, 2, seed);
    TORCH_CHECK(std::isfinite(one.seconds), "1 worker did not reach the goal in ", kEpochs, " epochs, seed ", seed);
    one_s.add(one.seconds), one_samples.add(one.samples);
    two_s.add(two.seconds), two_samples.add(two.samples);
    ceiling.add(rates.beside.over(rates.one).median());
    std::fprintf(stderr, "to %.0f %%, seed %d: 1 worker %.1f s, %.0f samples; 2 workers %.1f s, %.0f samples\n",
                 100 * kGoal, seed, one.seconds, one.samples, two.seconds, two.samples);
  }
  Line("async.time_to_accuracy_2_workers", one_s.over(two_s), Better::kMore, "x")
      .beside(kCeiling, ceiling)
      .ratio_at_least(0.85)
      .add("one_worker_s", one_s.median())
      .add("two_workers_s", two_s.median())
      .add("one_worker_samples", one_samples.median())
      .add("two_workers_samples", two_samples.median())
      .print();
}

void print_one_worker(const Conductor& conductor) {
  Rounds plain_ms, worker_ms, plain_faults, worker_faults;
  for (int i = 0; i < kPlainRepeats; ++i) {
    const auto plain = conductor.plain(), worker = conductor.one_worker();
    plain_ms.add(plain[1]), plain_faults.add(plain[2]);
    worker_ms.add(worker[1]), worker_faults.add(worker[2]);
  }
  Line("worker.page_faults_per_step", worker_faults, Better::kLess, "faults")
      .beside("plain loop, glibc's defaults", plain_faults)
      .at_most(100)
      .print();
  Line::quotient("worker.step_over_plain", worker_ms, plain_ms, Better::kLess)
      .add("worker_ms", worker_ms.median())
      .add("plain_ms", plain_ms.median())
      .at_most(0.95)
      .print();
}

// Debian's package, unpacked beside us once.
std::string unpacked_images(const std::filesystem::path& folder) {
  for (const char* name :
       {"train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"}) {
    const std::string to = (folder / name).string();
    if (!std::filesystem::exists(to)) {
      std::filesystem::create_directories(folder);
      wait_for(start(
          {"sh", "-c", "gunzip -c /usr/share/datasets/fashion-mnist/$1.gz >$2.part && mv $2.part $2", "sh", name, to}));
    }
  }
  return folder.string();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 6 && std::string(argv[1]) == "--process") {
    return be_a_process(argv[2], argv[3], std::atoi(argv[4]), argv[5]);
  }
  take_filter(argc, argv);
  const auto self = std::filesystem::read_symlink("/proc/self/exe");
  const bool wants_accuracy = is_wanted("async.time_to_accuracy_2_workers");
  const bool wants_rates = is_any_wanted({"async.speedup_2_workers", "async.samples_per_s_2_workers"});
  const bool wants_one_worker = is_any_wanted({"worker.page_faults_per_step", "worker.step_over_plain"});
  if (!wants_accuracy && !wants_rates && !wants_one_worker) {
    return 0;
  }
  const Conductor conductor{self.string(), unpacked_images(self.parent_path().parent_path() / "bench" / "images"),
                            self.string() + ".out"};
  if (wants_one_worker) {
    print_one_worker(conductor);
  }
  if (wants_rates || wants_accuracy) {
    const Rates rates = measure_rates(conductor);
    print_rates(rates);
    if (wants_accuracy) {
      print_time_to_accuracy(conductor, rates);
    }
  }
}
