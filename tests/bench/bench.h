#pragma once
// What the benchmarks share: the filter, rounds with best and median, one JSON object a line, helper processes.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/base/fd.h"

namespace downpour::bench {

inline double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// ---- the filter -----------------------------------------------------------------------------------------------------

inline std::string& filter() {
  static std::string text;
  return text;
}
// Every benchmark takes one optional argument: only lines whose name contains it are measured and printed.
inline void take_filter(int argc, char** argv) { filter() = argc > 1 ? argv[1] : ""; }
inline bool is_wanted(std::string_view name) { return name.find(filter()) != std::string_view::npos; }
inline bool is_any_wanted(std::initializer_list<std::string_view> names) {
  return std::any_of(names.begin(), names.end(), is_wanted);
}

// ---- rounds ---------------------------------------------------------------------------------------------------------

enum class Better { kMore, kLess };

struct Rounds {
  std::vector<double> values;

  void add(double value) { values.push_back(value); }
  double median() const {
    DOWNPOUR_CHECK(!values.empty(), "a benchmark without rounds");
    std::vector<double> sorted = values;
    std::sort(sorted.begin(), sorted.end());
    const std::size_t half = sorted.size() / 2;
    return sorted.size() % 2 == 1 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
  }
  double best(Better better) const {
    return better == Better::kMore ? *std::max_element(values.begin(), values.end())
                                   : *std::min_element(values.begin(), values.end());
  }
  // Pair by pair: the machine's drift hits both of a pair.
  Rounds over(const Rounds& other) const {
    Rounds ratios;
    for (std::size_t i = 0; i < values.size(); ++i) {
      ratios.add(values[i] / other.values.at(i));
    }
    return ratios;
  }
};

// ---- one line -------------------------------------------------------------------------------------------------------

// {"name", "value": median, "best", "unit", more fields, "goal", "met"}; with a peer also peer, peer_value, peer_best and
// ratio, the median of the pairs.
class Line {
 public:
  Line(std::string name, const Rounds& rounds, Better better, std::string_view unit)
      : Line(std::move(name), rounds, better, unit, rounds.median(), rounds.best(better)) {}
  // The figure is the mean: where none may happen, a median would hide the rounds in which some did.
  static Line mean(std::string name, const Rounds& rounds, Better better, std::string_view unit) {
    double sum = 0;
    for (const double value : rounds.values) {
      sum += value;
    }
    const double mean = sum / static_cast<double>(rounds.values.size());
    return Line(std::move(name), rounds, better, unit, mean, rounds.best(better));
  }
  // One figure over another, both in the same unit: the median of the pairs, and the best over the best.
  static Line quotient(std::string name, const Rounds& rounds, const Rounds& divisor, Better better) {
    const Rounds pairs = rounds.over(divisor);
    return Line(std::move(name), pairs, better, "x", pairs.median(), rounds.best(better) / divisor.best(better));
  }
  Line& beside(std::string_view peer, const Rounds& theirs) {
    ratio_ = rounds_.over(theirs).median();
    add("peer", peer);
    add("peer_value", theirs.median());
    add("peer_best", theirs.best(better_));
    add("ratio", *ratio_);
    return *this;
  }
  Line& add(std::string_view key, double value) {
    char text[40];
    std::snprintf(text, sizeof(text), std::isfinite(value) ? "%.5g" : "null", value);
    return add_raw(key, text);
  }
  Line& add(std::string_view key, std::string_view text) { return add_raw(key, "\"" + std::string(text) + "\""); }
  Line& at_most(double limit) { return goal("<= ", limit, value_ <= limit); }
  Line& at_least(double limit) { return goal(">= ", limit, value_ >= limit); }
  Line& ratio_at_least(double limit) { return goal("ratio >= ", limit, ratio_ && *ratio_ >= limit); }

  void print() const {
    if (is_wanted(name_)) {
      std::printf("{\"name\":\"%s\"%s}\n", name_.c_str(), fields_.c_str());
      std::fflush(stdout);
    }
  }

 private:
  Line(std::string name, const Rounds& rounds, Better better, std::string_view unit, double value, double best)
      : name_(std::move(name)), rounds_(rounds), better_(better), value_(value) {
    add("value", value);
    add("best", best);
    add("unit", unit);
  }
  Line& add_raw(std::string_view key, std::string_view value) {
    fields_ += concat(",\"", key, "\":", value);
    return *this;
  }
  Line& goal(const char* relation, double limit, bool met) {
    char text[40];
    std::snprintf(text, sizeof(text), "%s%g", relation, limit);
    return add("goal", text).add_raw("met", met ? "true" : "false");
  }

  std::string name_;
  Rounds rounds_;
  Better better_;
  double value_;
  std::optional<double> ratio_;
  std::string fields_;
};

// ---- another process ------------------------------------------------------------------------------------------------

// A fork that talks through one end of a socket pair; killed by destruction and by our death.
class Child {
 public:
  explicit Child(const std::function<void(int socket)>& body) {
    int ends[2];
    DOWNPOUR_CHECK(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "socketpair failed");
    std::fflush(stdout);
    pid_ = ::fork();
    DOWNPOUR_CHECK(pid_ >= 0, "fork failed");
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::close(ends[0]);
      try {
        body(ends[1]);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "a benchmark's helper process failed: %s\n", error.what());
        std::_Exit(1);
      }
      std::_Exit(0);
    }
    ::close(ends[1]);
    socket_ = Fd(ends[0]);
  }
  ~Child() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  void command(char c) { DOWNPOUR_CHECK(::write(socket_.get(), &c, 1) == 1, "a benchmark's helper process is gone"); }
  template <typename T>
  T answer() {
    T value;
    DOWNPOUR_CHECK(::read(socket_.get(), &value, sizeof(value)) == sizeof(value),
                   "a benchmark's helper process is gone");
    return value;
  }
  template <typename T>
  T ask(char c) {
    command(c);
    return answer<T>();
  }

 private:
  pid_t pid_ = 0;
  Fd socket_;
};

// In a child: a command, or 0 at the end; and an answer.
inline char next_command(int socket) {
  char c = 0;
  return ::read(socket, &c, 1) == 1 ? c : '\0';
}
inline bool has_command(int socket) {
  char c = 0;
  return ::recv(socket, &c, 1, MSG_DONTWAIT | MSG_PEEK) == 1;
}
template <typename T>
void reply(int socket, const T& value) {
  DOWNPOUR_CHECK(::write(socket, &value, sizeof(value)) == sizeof(value), "the benchmark is gone");
}

// A worker that does the same over and over while others are measured: between start() and stop().
class Competitor {
 public:
  // `prepare` runs in the new process and returns what is repeated.
  explicit Competitor(const std::function<std::function<void()>()>& prepare)
      : child_([&](int socket) { compete(socket, prepare()); }) {
    child_.answer<char>();
  }
  void start() { child_.ask<char>('g'); }            // returns when it has done it once
  double stop() { return child_.ask<double>('s'); }  // times a second since

 private:
  static void compete(int socket, const std::function<void()>& once) {
    reply(socket, 'r');
    while (next_command(socket) == 'g') {
      once();
      reply(socket, 'g');
      const double begin = now_s();
      double count = 0;
      while (!has_command(socket)) {
        once();
        ++count;
      }
      next_command(socket);
      reply(socket, count / (now_s() - begin));
    }
  }

  Child child_;
};

}  // namespace downpour::bench
