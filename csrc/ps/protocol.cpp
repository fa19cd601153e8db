#include "csrc/ps/protocol.h"

#include "csrc/ps/protocol_fields.h"

namespace downpour::ps {

template <>
struct Fields<Version> {
  static auto of(auto& m) { return std::tie(m.generation, m.version); }
};
template <>
struct Fields<JoinShard> {
  static constexpr std::string_view kName = "shard hello";
  static auto of(auto& m) { return std::tie(m.shard, m.slots, m.attempt); }
};
template <>
struct Fields<ShardWelcome> {
  static constexpr std::string_view kName = "shard welcome";
  static auto of(auto& m) { return std::tie(m.slots, m.buffer_bytes, m.keeps_snapshots); }
};
template <>
struct Fields<ShardState> {
  static constexpr std::string_view kName = "shard state";
  static auto of(auto& m) { return std::tie(m.version, m.next_sequence, m.initialised); }
};
template <>
struct Fields<Resume> {
  static constexpr std::string_view kName = "resume";
  static auto of(auto& m) { return std::tie(m.sequence); }
};
template <>
struct Fields<Initialise> {
  static constexpr std::string_view kName = "initialise";
  static auto of(auto& m) { return std::tie(m.last, m.accumulators); }
};
template <>
struct Fields<Hyper> {
  static constexpr std::size_t kLeastBytes = 9 * sizeof(double) + 3;
  static auto of(auto& m) {
    return std::tie(m.lr, m.weight_decay, m.momentum, m.dampening, m.lr_decay, m.beta1, m.beta2, m.eps,
                    m.gradient_scale, m.nesterov, m.amsgrad, m.plain);
  }
};
template <>
struct Fields<GradientCheck> {
  static auto of(auto& m) { return std::tie(m.finite, m.squared_norm); }
};
template <>
constexpr std::size_t kLeftOut<PushHeader> = 2;  // the fragment has the sequence, the connection the worker
template <>
struct Fields<PushHeader> {
  static auto of(auto& m) {
    return std::tie(m.base, m.lease, m.groups, m.present, m.replayed, m.exempt_from_staleness, m.check);
  }
};
template <>
struct Fields<Pull> {
  static constexpr std::string_view kName = "pull";
  static auto of(auto& m) { return std::tie(m.request); }
};
template <>
struct Fields<PushResult> {
  static auto of(auto& m) { return std::tie(m.verdict, m.repeated, m.version, m.staleness); }
};
template <>
struct Fields<Ack> {
  static constexpr std::string_view kName = "acknowledgement";
  static auto of(auto& m) { return std::tie(m.sequence, m.result); }
};
template <>
struct Fields<Values> {
  static constexpr std::string_view kName = "values";
  static auto of(auto& m) { return std::tie(m.request, m.version, m.last); }
};
template <>
struct Fields<Durable> {
  static constexpr std::string_view kName = "durable";
  static auto of(auto& m) { return std::tie(m.below); }
};

void encode(const JoinShard& message, Writer& out) { put_field(out, message); }
void encode(const ShardWelcome& message, Writer& out) { put_field(out, message); }
void encode(const ShardState& message, Writer& out) { put_field(out, message); }
void encode(const Resume& message, Writer& out) { put_field(out, message); }
void encode(const Initialise& message, Writer& out) { put_field(out, message); }
void encode(const Pull& message, Writer& out) { put_field(out, message); }
void encode(const Ack& message, Writer& out) { put_field(out, message); }
void encode(const Values& message, Writer& out) { put_field(out, message); }
void encode(const Durable& message, Writer& out) { put_field(out, message); }

void encode(const PushFragment& fragment, Writer& out) {
  put_field(out, fragment.sequence);
  put_field(out, fragment.slot);
  put_field(out, fragment.last);
  if (fragment.last != 0) {
    put_field(out, fragment.header);
  }
}

template JoinShard decode<JoinShard>(Bytes);
template ShardWelcome decode<ShardWelcome>(Bytes);
template ShardState decode<ShardState>(Bytes);
template Resume decode<Resume>(Bytes);
template Initialise decode<Initialise>(Bytes);
template Pull decode<Pull>(Bytes);
template Ack decode<Ack>(Bytes);
template Values decode<Values>(Bytes);
template Durable decode<Durable>(Bytes);

namespace {

// A rate that is no number would turn finite gradients into values that are none.
void check_finite(const Hyper& hyper) {
  for (const double number : {hyper.lr, hyper.weight_decay, hyper.momentum, hyper.dampening, hyper.lr_decay,
                              hyper.beta1, hyper.beta2, hyper.eps}) {
    DOWNPOUR_CHECK_AS(ProtocolError, std::isfinite(number), "push: a hyper-parameter must be finite, found ", number);
  }
}

}  // namespace

void decode_into(Bytes body, PushFragment& into) {
  Reader in(body, "push");
  get_field(in, into.sequence);
  get_field(in, into.slot);
  get_field(in, into.last);
  if (into.last != 0) {
    get_field(in, into.header);
    into.header.sequence = into.sequence;
    for (const Hyper& hyper : into.header.groups) {
      check_finite(hyper);
    }
    const GradientCheck& check = into.header.check;
    DOWNPOUR_CHECK_AS(ProtocolError, !check.finite || check.squared_norm >= 0, "push: a squared norm of ",
                      check.squared_norm);
  }
  in.finish();
}

std::uint64_t largest_body_bytes(const Schema& schema, const ShardLayout& layout) {
  constexpr std::uint64_t kFixedBytes = 256 + Reason::kMostBytes;
  return kFixedBytes + schema.groups * Fields<Hyper>::kLeastBytes + layout.slices.size() / 8;
}

}  // namespace downpour::ps
