#include "csrc/collective/links.h"

#include <algorithm>
#include <utility>

#include "csrc/base/error.h"
#include "csrc/collective/algorithm_table.h"

namespace downpour::collective {
namespace {

constexpr std::uint64_t kLargestBodyBytes = 64 * 1024;

// What both ends must have in common, so that their plans fit each other.
std::uint64_t schema() { return algorithm_table_hash() ^ kWindowBytes; }

}  // namespace

Links::Links(const LinksOptions& options, LinksUser& user)
    : options_(options), user_(user), taken_(static_cast<std::size_t>(options.world)) {
  for (int rank = 0; rank < options.world; ++rank) {
    links_.push_back(std::make_unique<Link>(rank, static_cast<LinkOwner&>(*this)));
    pointers_.push_back(links_.back().get());
  }
}

Links::~Links() { close(); }

void Links::connect(const Connect& connect) {
  for (int rank = 0; rank < options_.rank; ++rank) {
    transport::Hello hello;
    hello.job = options_.group;
    hello.role = transport::Role::kRank;
    hello.rank = options_.rank;
    hello.schema = schema();
    transport::ConnectOptions terms;
    terms.peer = concat("rank ", rank);
    terms.deadline = options_.connect_deadline;
    terms.largest_window_bytes = kWindowBytes;
    terms.largest_body_bytes = kLargestBodyBytes;
    to(rank).connect(connect(rank, hello, to(rank), terms));
  }
}

std::vector<int> Links::missing() const {
  std::vector<int> ranks;
  for (const Link* link : pointers_) {
    if (link->peer() != options_.rank && !link->is_open()) {
      ranks.push_back(link->peer());
    }
  }
  return ranks;
}

// ---- connections -----------------------------------------------------------------------------------------------------

std::string Links::objection(const transport::Hello& hello) {
  const auto rank = static_cast<std::size_t>(hello.rank);
  if (hello.job != options_.group) {
    return "another group: two jobs use one address";
  }
  if (hello.role != transport::Role::kRank || hello.rank <= options_.rank || hello.rank >= options_.world) {
    return concat("expected a rank from ", options_.rank + 1, " to ", options_.world - 1, ", found ",
                  transport::name(hello.role), " ", hello.rank);
  }
  if (hello.schema != schema()) {
    return "another build of Downpour: its table of algorithms is not this one's";
  }
  return taken_[rank] ? concat("rank ", hello.rank, " is taken: two processes claim one rank") : "";
}

transport::Admission Links::admit(const transport::Hello& hello, transport::Medium) {
  transport::Admission admission;
  admission.reason = objection(hello);
  admission.accepted = admission.reason.empty();
  if (admission.accepted) {
    taken_[static_cast<std::size_t>(hello.rank)] = true;
    admission.welcome.to_acceptor_window_bytes = admission.welcome.to_connector_window_bytes = kWindowBytes;
    admission.largest_body_bytes = kLargestBodyBytes;
    admission.receiver = &to(hello.rank);
  }
  return admission;
}

void Links::on_connection(std::unique_ptr<transport::Connection> connection) {
  Link& link = to(connection->hello().rank);
  link.accept(std::move(connection));
  count_open(link);
}

void Links::on_link_open(Link& link) { count_open(link); }

void Links::count_open(Link& link) {
  link.connection()->start_heartbeat(options_.heartbeat, options_.warn_after, options_.silence);
  ++open_;
  if (are_open()) {
    user_.on_links_open();
  }
}

// ---- traffic and endings -----------------------------------------------------------------------------------------------

void Links::on_pieces(Link&) {
  if (!over_) {
    user_.on_pieces();
  }
}

void Links::on_message(Link& link, std::uint16_t type, Bytes body, Bytes bulk) {
  if (!over_) {
    user_.on_message(link, type, body, bulk);
  }
}

void Links::on_abort(Link& link, std::string_view reason) {
  break_down(std::make_exception_ptr(PeerLostError(concat("rank ", link.peer(), " gave up: ", reason))));
}

void Links::on_link_left(Link& link) {
  if (!over_) {
    user_.on_left(link.peer());
  }
}

void Links::on_link_lost(Link& link, std::exception_ptr why) {
  break_down(std::make_exception_ptr(PeerLostError(concat("rank ", link.peer(), " is lost: ", text_of(why)))));
}

void Links::break_down(std::exception_ptr why) {
  if (!std::exchange(over_, true)) {
    user_.on_broken(std::move(why));
  }
}

void Links::abort(std::string_view reason) {
  fall_silent();
  for (Link* link : pointers_) {
    link->abort(reason);
  }
}

bool Links::are_idle() const {
  return std::ranges::all_of(pointers_,
                             [](const Link* link) { return !link->is_open() || link->connection()->idle(); });
}

void Links::close() {
  over_ = true;
  for (Link* link : pointers_) {
    link->close();
  }
}

}  // namespace downpour::collective
