#include "csrc/ps/client.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "csrc/base/error.h"
#include "csrc/base/own_stall.h"
#include "csrc/ps/push_ledger.h"
#include "csrc/ps/shard_link.h"

namespace downpour::ps {
namespace {

// More than a shard remembers verdicts for would not help.
constexpr std::uint64_t kMostSlots = VerdictTable::kWindow;
constexpr std::uint64_t kFewestSlots = 4;
// Whoever waits looks at the clock so often, to notice that its process stood still.
constexpr Duration kLongestSleep = std::chrono::seconds(1);

// A parameter's slice in one shard.
struct Place {
  std::size_t shard = 0;
  std::size_t slice = 0;
};

std::vector<std::vector<Place>> places_of(const Schema& schema, const std::vector<ShardLayout>& layouts) {
  std::vector<std::vector<Place>> places(schema.parameters.size());
  for (std::size_t shard = 0; shard < layouts.size(); ++shard) {
    for (std::size_t slice = 0; slice < layouts[shard].slices.size(); ++slice) {
      places[layouts[shard].slices[slice].parameter].push_back({shard, slice});
    }
  }
  return places;
}

std::uint32_t slots_for(const ShardLayout& layout, std::size_t shards, std::uint64_t budget_bytes) {
  const auto buffer_bytes = static_cast<std::uint64_t>(std::max<std::int64_t>(layout.buffer_bytes, 1));
  return static_cast<std::uint32_t>(std::clamp(budget_bytes / shards / buffer_bytes, kFewestSlots, kMostSlots));
}

}  // namespace

struct Client::State {
  State(const Schema& the_schema, int shard_count, Connector& the_connector, ClientOptions the_options);

  template <typename Done>
  void wait(const char* operation, Done&& done);
  void advance();
  void raise_failures();
  TimePoint next_retry() const;
  [[noreturn]] void time_out(const char* operation, Duration waited);
  void drive();
  bool all(bool (ShardLink::*is_so)() const) const;
  bool adopt_arrived(const Adopt& adopt);

  const Schema schema;
  const std::vector<ShardLayout> layouts;
  const std::vector<std::vector<Place>> places;  // by parameter
  Connector& connector;
  ClientOptions options;
  PushLedger ledger;
  ClientCounters counters;
  std::vector<std::unique_ptr<ShardLink>> links;
  std::optional<std::uint64_t> push;  // begun and not ended
  bool pulling = false;
};

Client::State::State(const Schema& the_schema, int shard_count, Connector& the_connector, ClientOptions the_options)
    : schema(the_schema),
      layouts(partition(schema, shard_count)),
      places(places_of(schema, layouts)),
      connector(the_connector),
      options(the_options) {
  const std::uint64_t hash = schema.hash();
  for (std::size_t shard = 0; shard < layouts.size(); ++shard) {
    const ShardLink::Terms terms{
        static_cast<int>(shard), schema,  hash,
        layouts[shard],          options, slots_for(layouts[shard], layouts.size(), options.replay_budget_bytes)};
    links.push_back(std::make_unique<ShardLink>(terms, connector, ledger, counters));
  }
}

void Client::State::advance() {
  for (const auto& link : links) {
    link->advance();
  }
}

void Client::State::raise_failures() {
  for (const auto& link : links) {
    if (const std::exception_ptr failure = link->take_failure()) {
      std::rethrow_exception(failure);
    }
  }
}

TimePoint Client::State::next_retry() const {
  TimePoint earliest = TimePoint::max();
  for (const auto& link : links) {
    earliest = std::min(earliest, link->retry_at());
  }
  return earliest;
}

bool Client::State::all(bool (ShardLink::*is_so)() const) const {
  return std::all_of(links.begin(), links.end(), [&](const auto& link) { return (link.get()->*is_so)(); });
}

void Client::State::time_out(const char* operation, Duration waited) {
  std::string shards;
  for (const auto& link : links) {
    shards += (shards.empty() ? "" : "; ") + link->text();
  }
  throw TimeoutError(
      concat("worker ", options.rank, ": ", operation, " timed out after ", seconds(waited), " s; ", shards));
}

template <typename Done>
void Client::State::wait(const char* operation, Done&& done) {
  TimePoint start = connector.now();
  while (true) {
    advance();
    if (done()) {
      return;
    }
    raise_failures();
    const TimePoint now = connector.now();
    if (now - start >= options.call_deadline) {
      time_out(operation, now - start);
    }
    OwnStall stall(kLongestSleep, options.call_deadline, now);
    connector.run_once(std::min({start + options.call_deadline, next_retry(), now + kLongestSleep}), options.spin);
    start += stall.look(connector.now());
  }
}

// One look at the outside world.
void Client::State::drive() {
  advance();
  connector.run_once(connector.now(), Duration::zero());
  advance();
}

bool Client::State::adopt_arrived(const Adopt& adopt) {
  bool complete = true;
  for (const auto& link : links) {
    complete &= link->adopt(adopt);
  }
  return complete;
}

Client::Client(const Schema& schema, int shard_count, Connector& connector, ClientOptions options)
    : state_(std::make_unique<State>(schema, shard_count, connector, options)) {}

Client::~Client() = default;

void Client::open() {
  state_->wait("connecting", [this] { return state_->all(&ShardLink::is_ready); });
}

bool Client::initialise(const std::function<const void*(std::uint32_t parameter)>& values,
                        std::span<const double> accumulators) {
  DOWNPOUR_CHECK(accumulators.size() == state_->schema.groups, "initialise: ", accumulators.size(),
                 " initial accumulators for ", state_->schema.groups, " parameter groups");
  open();
  const bool had_values = state_->all(&ShardLink::is_initialised);
  const auto copy = [&](const Slice& slice, std::byte* to) {
    const auto* from = static_cast<const std::byte*>(values(slice.parameter)) + slice.begin * size_bytes(slice.dtype);
    std::memcpy(to, from, static_cast<std::size_t>(slice.size_bytes()));
  };
  for (const auto& link : state_->links) {
    link->offer(copy, accumulators);
  }
  state_->wait("offering the initial values", [this] { return state_->all(&ShardLink::is_initialised); });
  return !had_values;
}

void Client::begin_push(std::uint64_t lease) {
  DOWNPOUR_CHECK(!state_->push, "begin_push: the push before has neither ended nor been abandoned");
  state_->wait("push", [this] { return state_->all(&ShardLink::can_begin); });
  state_->push = state_->ledger.begin(lease, static_cast<int>(state_->links.size()));
  for (const auto& link : state_->links) {
    link->begin(*state_->push, lease);
  }
}

void Client::add_gradient(std::uint32_t parameter, const void* gradient) {
  DOWNPOUR_CHECK(state_->push && parameter < state_->places.size(), "add_gradient: parameter ", parameter, " of ",
                 state_->places.size(), state_->push ? "" : ", but no push has begun");
  bool wants_attention = false;
  for (const Place& place : state_->places[parameter]) {
    ShardLink& link = *state_->links[place.shard];
    const Slice& slice = state_->layouts[place.shard].slices[place.slice];
    DOWNPOUR_CHECK(!link.has(place.slice), "add_gradient: parameter '", state_->schema.parameters[parameter].name,
                   "' twice in one push");
    link.add(place.slice, static_cast<const std::byte*>(gradient) + slice.begin * size_bytes(slice.dtype));
    state_->counters.pushed_bytes += static_cast<std::uint64_t>(slice.size_bytes());
    wants_attention |= link.wants_attention();
  }
  if (wants_attention) {
    state_->drive();
  }
}

void Client::end_push(std::span<const Hyper> groups) {
  DOWNPOUR_CHECK(state_->push, "end_push: no push has begun");
  DOWNPOUR_CHECK(groups.size() == state_->schema.groups, "end_push: ", groups.size(),
                 " groups of hyper-parameters, the schema has ", state_->schema.groups);
  state_->push.reset();
  state_->ledger.end();
  ++state_->counters.pushes;
  for (const auto& link : state_->links) {
    link->end(groups);
  }
  const auto handed_over = [](const auto& link) { return link->has_handed_over(); };
  const auto& links = state_->links;
  if (!std::all_of(links.begin(), links.end(), handed_over)) {
    state_->wait("push", [&] { return std::all_of(links.begin(), links.end(), handed_over); });
  }
}

void Client::abandon_push() {
  if (std::exchange(state_->push, std::nullopt)) {
    state_->ledger.abandon();
    for (const auto& link : state_->links) {
      link->abandon();
    }
  }
}

StepReport Client::settle() {
  state_->wait("waiting for the acknowledgement of pushes", [this] { return unsettled() == 0; });
  return state_->ledger.take_report();
}

bool Client::save() {
  DOWNPOUR_CHECK(!state_->push, "save: a push has begun and not ended");
  state_->wait("waiting for the acknowledgement of pushes", [this] { return unsettled() == 0; });
  for (const auto& link : state_->links) {
    link->save();
  }
  try {
    state_->wait("waiting for a snapshot", [this] { return state_->all(&ShardLink::has_saved); });
  } catch (const TimeoutError&) {
    return false;
  }
  return state_->all(&ShardLink::is_saved);
}

int Client::unsettled() const { return state_->ledger.unsettled(); }

void Client::begin_pull() {
  DOWNPOUR_CHECK(!state_->pulling, "begin_pull: the pull before has not been finished");
  state_->pulling = true;
  for (const auto& link : state_->links) {
    link->begin_pull();
  }
}

void Client::finish_pull(const Adopt& adopt) {
  DOWNPOUR_CHECK(state_->pulling, "finish_pull: no pull has begun");
  try {
    state_->wait("pull", [&] { return state_->adopt_arrived(adopt); });
  } catch (...) {
    state_->pulling = false;
    for (const auto& link : state_->links) {
      link->cancel_pull();
    }
    throw;
  }
  state_->pulling = false;
  ++state_->counters.pulls;
  for (const auto& link : state_->links) {
    link->finish_pull();
  }
  for (const ShardLayout& layout : state_->layouts) {
    state_->counters.pulled_bytes += layout.value_bytes();
  }
}

bool Client::pull_begun() const { return state_->pulling; }

void Client::keep_base_version() {
  for (const auto& link : state_->links) {
    link->keep_base_version();
  }
}

std::vector<std::uint64_t> Client::take_decided_leases() { return state_->ledger.take_leases(); }

void Client::set_incarnation(std::uint32_t incarnation) {
  state_->options.incarnation = incarnation;
  for (const auto& link : state_->links) {
    link->start_over();
  }
}

void Client::look() { state_->drive(); }

const ClientCounters& Client::counters() const { return state_->counters; }

const std::vector<ShardLayout>& Client::layouts() const { return state_->layouts; }

std::string Client::medium() const {
  std::string media;
  for (const auto& link : state_->links) {
    if (const std::string one = link->medium(); media.find(one) == std::string::npos) {
      media += (media.empty() ? "" : "+") + one;
    }
  }
  return media;
}

}  // namespace downpour::ps
