#include "backends/process_group_downpour.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <numeric>
#include <utility>

namespace downpour {

using backends::HostTensor;
using backends::only_one;
using backends::Operand;
using backends::StreamMark;
using backends::TensorCall;
using c10d::OpType;
using collective::CallShape;
using collective::Op;

namespace {

using Tensors = std::vector<at::Tensor>;

CallShape shape_of(Op op, std::int64_t count) {
  CallShape shape;
  shape.op = op;
  shape.count = count;
  return shape;
}

c10::intrusive_ptr<c10::ivalue::Future> tensors_future() {
  return c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
}

const Tensors& only_list(const char* what, const std::vector<Tensors>& lists, int world) {
  DOWNPOUR_CHECK(lists.size() == 1, what, ": expected 1 list of tensors, found ", lists.size());
  DOWNPOUR_CHECK(lists.front().size() == static_cast<std::size_t>(world), what, ": expected ", world,
                 " tensors, one for each rank, found ", lists.front().size());
  return lists.front();
}

void check_pairs(const char* what, std::size_t outputs, std::size_t inputs) {
  DOWNPOUR_CHECK(outputs == inputs, what, ": expected as many outputs as inputs, found ", outputs, " and ", inputs);
}

}  // namespace

// ---- works -----------------------------------------------------------------------------------------------------------------

class ProcessGroupDownpour::CallWork final : public c10d::Work {
 public:
  CallWork(int rank, OpType type, Tensors outputs, std::uint64_t sequence)
      : Work(rank, type, nullptr, std::nullopt),
        outputs_(std::move(outputs)),
        sequence_(sequence),
        future_(tensors_future()) {}

  Tensors result() override { return outputs_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }
  std::uint64_t getSequencenumber() const override { return sequence_; }
  int sourceRank() const override { return source_; }

  // Once. The work first: who hears of the future asks the work.
  void complete(const std::exception_ptr& error, int source = -1) {
    source_ = source;
    finish(error);
    if (error != nullptr) {
      future_->setError(error);
    } else {
      future_->markCompleted(c10::IValue(outputs_));
    }
  }

 private:
  Tensors outputs_;
  std::uint64_t sequence_;
  std::atomic<int> source_{-1};
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

// ---- the group ---------------------------------------------------------------------------------------------------------------

ProcessGroupDownpour::Options::Options(std::chrono::milliseconds limit)
    : c10d::Backend::Options(std::string(kName), limit) {}

c10::intrusive_ptr<c10d::Backend::Options> ProcessGroupDownpour::Options::clone() const {
  return c10::make_intrusive<Options>(*this);
}

ProcessGroupDownpour::ProcessGroupDownpour(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                           c10::intrusive_ptr<Options> options)
    : Backend(rank, size), options_(std::move(options)), bulletin_(std::make_unique<backends::StoreBulletin>(store)) {
  collective::GroupOptions terms = options_->group;
  terms.rank = rank;
  terms.world = size;
  terms.join_deadline = options_->timeout;
  group_ = collective::Group::form(*bulletin_, terms);
}

ProcessGroupDownpour::~ProcessGroupDownpour() = default;

std::string ProcessGroupDownpour::medium() const { return group().medium(); }

collective::Group& ProcessGroupDownpour::group() const {
  DOWNPOUR_CHECK(group_ != nullptr, "rank ", rank_, ": the process group was shut down; make a new one");
  return *group_;
}

Duration ProcessGroupDownpour::limit(std::chrono::milliseconds asked) const {
  return asked == c10d::kUnsetTimeout ? options_->timeout : asked;
}

c10d::ErrorType ProcessGroupDownpour::getError() {
  try {
    if (const auto why = group().error()) {
      std::rethrow_exception(why);
    }
  } catch (const TimeoutError&) {
    return c10d::ErrorType::TIMEOUT;
  } catch (const std::exception&) {
    return c10d::ErrorType::COMM_ERROR;
  }
  return c10d::ErrorType::SUCCESS;
}

void ProcessGroupDownpour::abort() {
  if (group_ != nullptr) {
    group_->abort(concat("abort() was called on rank ", rank_));
  }
}

void ProcessGroupDownpour::shutdown() {
  if (group_ == nullptr) {
    return;
  }
  try {
    group_->run([](collective::Group::Turn&) {});  // behind all that is under way
  } catch (const CommError&) {
    // broken: nothing is under way any more
  }
  group_.reset();
}

c10::intrusive_ptr<c10d::Backend> ProcessGroupDownpour::split(
    const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
    const c10::intrusive_ptr<c10d::Backend::Options>& options) {
  const auto place = std::ranges::find(ranks, rank_);
  if (place == ranks.end()) {
    return nullptr;
  }
  auto terms = c10::make_intrusive<Options>(options ? options->timeout : options_->timeout);
  terms->group = options_->group;
  if (options) {
    terms->group_name = options->group_name;
    terms->group_desc = options->group_desc;
    terms->global_ranks_in_group = options->global_ranks_in_group;
  }
  return c10::make_intrusive<ProcessGroupDownpour>(store, static_cast<int>(place - ranks.begin()),
                                                   static_cast<int>(ranks.size()), std::move(terms));
}

at::Tensor ProcessGroupDownpour::allocate(at::IntArrayRef sizes, at::ScalarType dtype) {
  const at::TensorOptions options = at::TensorOptions(dtype).device(at::kCPU);
  const std::int64_t bytes = std::accumulate(sizes.begin(), sizes.end(),
                                             static_cast<std::int64_t>(c10::elementSize(dtype)), std::multiplies<>());
  if (bytes == 0) {
    return at::empty(sizes, options);
  }
  auto memory = group().allocate(bytes, limit(c10d::kUnsetTimeout));
  void* const address = memory.get();
  return at::from_blob(
      address, sizes, [kept = std::move(memory)](void*) mutable { kept.reset(); }, options);
}

// ---- how calls and messages are handed over ----------------------------------------------------------------------------------

// What a call in the background touches is kept by the work and the job.
ProcessGroupDownpour::WorkPtr ProcessGroupDownpour::call(OpType type, std::vector<Call> calls,
                                                         std::chrono::milliseconds timeout, bool asynchronous) {
  Tensors outputs;
  for (const Call& call : calls) {
    call.check(rank_, size_);
    std::ranges::copy(call.outputs(), std::back_inserter(outputs));
  }
  const auto work = c10::make_intrusive<CallWork>(rank_, type, outputs, sequence_++);
  const StreamMark mark(outputs);
  const auto job = [calls = std::move(calls), mark, limit = limit(timeout)](collective::Group::Turn& turn) {
    mark.wait();
    for (const Call& call : calls) {
      call.run(turn, limit);
    }
  };
  if (asynchronous || coalescing_) {
    const auto operation = group().begin(job);
    operation->then([operation = operation.get(), work] { work->complete(operation->error()); });
    return keep(work);
  }
  try {
    group().run(job);
    work->complete(nullptr);
  } catch (...) {
    work->complete(std::current_exception());
  }
  return work;
}

ProcessGroupDownpour::WorkPtr ProcessGroupDownpour::message(OpType type, const at::Tensor& tensor, int peer, int tag) {
  const bool sends = type == OpType::SEND;
  const auto work = c10::make_intrusive<CallWork>(rank_, type, Tensors{tensor}, sequence_++);
  StreamMark({tensor}).wait();
  const HostTensor host(tensor, sends ? HostTensor::Fill::kValues : HostTensor::Fill::kNothing);
  const auto operation = sends ? group().send(peer, tag, host.bytes()) : group().receive(peer, tag, host.bytes());
  operation->then([operation = operation.get(), work, host, sends] {
    const std::exception_ptr error = operation->error();
    if (error == nullptr && !sends) {
      const at::NoGradGuard no_grad;
      host.bring_home();
    }
    work->complete(error, operation->source());
  });
  return keep(work);
}

ProcessGroupDownpour::WorkPtr ProcessGroupDownpour::keep(c10::intrusive_ptr<CallWork> work) {
  if (coalescing_) {
    coalesced_.push_back(work);
  }
  return work;
}

void ProcessGroupDownpour::startCoalescing() {
  DOWNPOUR_CHECK(!coalescing_, "rank ", rank_, ": startCoalescing() without endCoalescing() of the last one");
  coalescing_ = true;
}

// One work for all since startCoalescing(), which are under way already: done when the last one is, with the first error.
ProcessGroupDownpour::WorkPtr ProcessGroupDownpour::endCoalescing() {
  DOWNPOUR_CHECK(coalescing_, "rank ", rank_, ": endCoalescing() without startCoalescing()");
  coalescing_ = false;
  struct Rest {
    std::mutex mutex;
    std::size_t left;
    std::exception_ptr error;
  };
  const auto works = std::exchange(coalesced_, {});
  const auto all = c10::make_intrusive<CallWork>(rank_, OpType::COALESCED, Tensors{}, sequence_++);
  const auto rest = std::make_shared<Rest>();
  rest->left = works.size() + 1;
  const auto one_less = [rest, all](const std::exception_ptr& error) {
    std::unique_lock lock(rest->mutex);
    rest->error = rest->error ? rest->error : error;
    const bool last = --rest->left == 0;
    lock.unlock();
    if (last) {
      all->complete(rest->error);
    }
  };
  for (const auto& work : works) {
    work->getFuture()->addCallback([one_less](c10::ivalue::Future& future) { one_less(future.exception_ptr()); });
  }
  one_less(nullptr);
  return all;
}

// ---- collectives -------------------------------------------------------------------------------------------------------------

ProcessGroupDownpour::Call ProcessGroupDownpour::reduction(Op op, const c10d::ReduceOp& reduce, std::int64_t root,
                                                           const at::Tensor& tensor) const {
  CallShape shape = shape_of(op, tensor.numel());
  shape.reduce = backends::reduce_op(reduce);
  shape.root = static_cast<std::int32_t>(root);
  return {shape, {}, {{tensor}, {}}, Call::Outputs::kReadAndWritten};
}

ProcessGroupDownpour::Call ProcessGroupDownpour::gathering(const at::Tensor& input, Operand outputs) const {
  return {shape_of(Op::kAllGather, input.numel()), {{input}, {}}, std::move(outputs)};
}

ProcessGroupDownpour::Call ProcessGroupDownpour::scattering(const c10d::ReduceOp& reduce, Operand inputs,
                                                            const at::Tensor& output) const {
  CallShape shape = shape_of(Op::kReduceScatter, output.numel());
  shape.reduce = backends::reduce_op(reduce);
  return {shape, std::move(inputs), {{output}, {}}};
}

std::vector<std::int64_t> ProcessGroupDownpour::even_cuts(const char* what, const at::Tensor& whole,
                                                          const at::Tensor& part) const {
  DOWNPOUR_CHECK(whole.numel() == part.numel() * size_, what, ": expected ", size_, " times the ", part.numel(),
                 " elements of one rank, found ", whole.numel());
  return std::vector<std::int64_t>(static_cast<std::size_t>(size_), part.numel());
}

ProcessGroupDownpour::WorkPtr ProcessGroupDownpour::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  const at::Tensor& tensor = only_one("broadcast", tensors);
  CallShape shape = shape_of(Op::kBroadcast, tensor.numel());
  shape.root = static_cast<std::int32_t>(options.rootRank);
  const auto use = options.rootRank == rank_ ? Call::Outputs::kReadAndWritten : Call::Outputs::kWritten;
  return call(OpType::BROADCAST, {Call(shape, {}, {{tensor}, {}}, use)}, options.timeout, options.asyncOp);
}

ProcessGroupDownpour::WorkPtr ProcessGroupDownpour::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  const at::Tensor& tensor = only_one("allreduce", tensors);
  return call(OpType::ALLREDUCE, {reduction(Op::kAllReduce, options.reduceOp, 0, tensor)}, options.timeout,
              options.asyncOp);
}

ProcessGroupDownpour::WorkPtr ProcessGroupDownpour::allreduce_coalesced(
    Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  std::vector<Call> calls;
  for (const at::Tensor& tensor : tensors) {
    calls.push_back(reduction(Op::kAllReduce, options.reduceOp, 0, tensor));
  }
  return call(OpType::ALLREDUCE_COALESCED, std::move(calls), options.timeout, options.asyncOp);
}

ProcessGroupDownpour::WorkPtr ProcessGroupDownpour::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  const at::Tensor& tensor = only_one("reduce", tensors);
  return call(OpType::REDUCE, {reduction(Op::kReduce, options.reduceOp, options.rootRank, tensor)}, options.timeout,
              options.asyncOp);
}

ProcessGroupDownpour::WorkPtr ProcessGroupDownpour::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                                              const c10d::AllgatherOptions& options) {
  const at::Tensor& input = only_one("allgather", inputs);
  return call(OpType::ALLGATHER, {gathering(input, {only_list("allgather", outputs, size_), {}})}, options.timeout,
              options.asyncOp);
}

ProcessGroupDownpour::WorkPtr ProcessGroupDownpour::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                                    const c10d::AllgatherOptions& options) {
  return call(OpType::_ALLGATHER_BASE, {gathering(input, {{output}, even_cuts("allgather_base", output, input)})},
              options.timeout, options.asyncOp);
}

// outputs[i][r]: inputs[i] of rank r.
ProcessGroupDownpour::WorkPtr ProcessGroupDownpour::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                                                        const c10d::AllgatherOptions& options) {
  check_pairs("allgather_coalesced", outputs.size(), inputs.size());
  std::vector<Call> calls;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    calls.push_back(gathering(inputs[i], {only_list("allgather_coalesced", {outputs[i]}, size_), {}}));
  }
  return call(OpType::ALLGATHER_COALESCED, std::move(calls), options.timeout, options.asyncOp);
}

ProcessGroupDownpour::WorkPtr ProcessGroupDownpour::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  check_pairs("allgather_into_tensor_coalesced", outputs.size(), inputs.size());
  std::vector<Call> calls;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    calls.push_back(
        gathering(inputs[i], {{outputs[i]}, even_cuts("allgather_into_tensor_coalesced", outputs[i], inputs[i])}));
  }
  return call(OpType::COALESCED, std::move(calls), options.timeout, options.asyncOp);
}

ProcessGroupDownpour::WorkPtr ProcessGroupDownpour::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                                           const c10d::GatherOptions& options) {
  const at::Tensor& input = only_one("gather", inputs);
  CallShape shape = shape_of(Op::kGather, input.numel());
  shape.root = static_cast<std::int32_t>(options.rootRank);
  Operand gathered;
  if (options.rootRank == rank_) {
    gathered.tensors = only_list("gather", outputs, size_);
  }
  return call(OpType::GATHER, {Call(shape, {{input}, {}}, std::move(gathered))}, options.timeout, options.asyncOp);
}

ProcessGroupDownpour::WorkPtr ProcessGroupDownpour::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                            const c10d::ScatterOptions& options) {
  const at::Tensor& output = only_one("scatter", outputs);
  CallShape shape = shape_of(Op::kScatter, output.numel());
  shape.root = static_cast<std::int32_t>(options.rootRank);
  Operand scattered;
  if (options.rootRank == rank_) {
    scattered.tensors = only_list("scatter", inputs, size_);
  }
  return call(OpType::SCATTER, {Call(shape, std::move(scattered), {{output}, {}})}, options.timeout, options.asyncOp);
}

ProcessGroupDownpour::WorkPtr ProcessGroupDownpour::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                                   const c10d::ReduceScatterOptions& options) {
  const at::Tensor& output = only_one("reduce_scatter", outputs);
  return call(OpType::REDUCE_SCATTER,
              {scattering(options.reduceOp, {only_list("reduce_scatter", inputs, size_), {}}, output)}, options.timeout,
              options.asyncOp);
}

ProcessGroupDownpour::WorkPtr ProcessGroupDownpour::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                                         const c10d::ReduceScatterOptions& options) {
  return call(OpType::_REDUCE_SCATTER_BASE,
              {scattering(options.reduceOp, {{input}, even_cuts("reduce_scatter_base", input, output)}, output)},
              options.timeout, options.asyncOp);
}

ProcessGroupDownpour::WorkPtr ProcessGroupDownpour::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) {
  check_pairs("reduce_scatter_tensor_coalesced", outputs.size(), inputs.size());
  std::vector<Call> calls;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    calls.push_back(scattering(options.reduceOp,
                               {{inputs[i]}, even_cuts("reduce_scatter_tensor_coalesced", inputs[i], outputs[i])},
                               outputs[i]));
  }
  return call(OpType::COALESCED, std::move(calls), options.timeout, options.asyncOp);
}

// Splits count rows; none: even parts.
std::vector<std::int64_t> ProcessGroupDownpour::row_cuts(const at::Tensor& tensor,
                                                         const std::vector<std::int64_t>& splits) const {
  const std::int64_t rows = tensor.dim() == 0 ? 1 : tensor.size(0);
  const std::vector<std::int64_t> counts =
      splits.empty() ? std::vector<std::int64_t>(static_cast<std::size_t>(size_), rows / size_) : splits;
  const bool fits = counts.size() == static_cast<std::size_t>(size_) &&
                    std::accumulate(counts.begin(), counts.end(), std::int64_t{0}) == rows &&
                    std::ranges::all_of(counts, [](std::int64_t count) { return count >= 0; });
  DOWNPOUR_CHECK(fits, "alltoall_base: expected ", size_, " splits that make up the ", rows,
                 " rows of a tensor, found ", splits.empty() ? "even parts" : c10::str(c10::IntArrayRef(splits)));
  std::vector<std::int64_t> cuts;
  const std::int64_t row = rows == 0 ? 0 : tensor.numel() / rows;
  std::ranges::transform(counts, std::back_inserter(cuts), [row](std::int64_t count) { return count * row; });
  return cuts;
}

ProcessGroupDownpour::WorkPtr ProcessGroupDownpour::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                                  std::vector<std::int64_t>& output_splits,
                                                                  std::vector<std::int64_t>& input_splits,
                                                                  const c10d::AllToAllOptions& options) {
  const bool even = output_splits.empty() && input_splits.empty();
  CallShape shape = shape_of(Op::kAllToAll, even ? input.numel() / size_ : CallShape::kUneven);
  return call(OpType::ALLTOALL_BASE,
              {Call(shape, {{input}, row_cuts(input, input_splits)}, {{output}, row_cuts(output, output_splits)})},
              options.timeout, options.asyncOp);
}

// Slices may differ in length, of which one rank alone does not know.
ProcessGroupDownpour::WorkPtr ProcessGroupDownpour::alltoall(Tensors& outputs, Tensors& inputs,
                                                             const c10d::AllToAllOptions& options) {
  only_list("alltoall", {outputs}, size_);
  only_list("alltoall", {inputs}, size_);
  return call(OpType::ALLTOALL, {Call(shape_of(Op::kAllToAll, CallShape::kUneven), {inputs, {}}, {outputs, {}})},
              options.timeout, options.asyncOp);
}

ProcessGroupDownpour::WorkPtr ProcessGroupDownpour::barrier(const c10d::BarrierOptions& options) {
  return call(OpType::BARRIER, {Call(shape_of(Op::kBarrier, 0), {}, {})}, options.timeout, options.asyncOp);
}

// The error of every barrier names all ranks that did not come.
void ProcessGroupDownpour::monitoredBarrier(const c10d::BarrierOptions& options, bool /*wait_all_ranks*/) {
  call(OpType::BARRIER, {Call(shape_of(Op::kBarrier, 0), {}, {})}, options.timeout, false)->wait();
}

// ---- messages ----------------------------------------------------------------------------------------------------------------

ProcessGroupDownpour::WorkPtr ProcessGroupDownpour::send(Tensors& tensors, int to, int tag) {
  return message(OpType::SEND, only_one("send", tensors), to, tag);
}

ProcessGroupDownpour::WorkPtr ProcessGroupDownpour::recv(Tensors& tensors, int from, int tag) {
  return message(OpType::RECV, only_one("recv", tensors), from, tag);
}

ProcessGroupDownpour::WorkPtr ProcessGroupDownpour::recvAnysource(Tensors& tensors, int tag) {
  return message(OpType::RECVANYSOURCE, only_one("recvAnysource", tensors), collective::Group::kAnyRank, tag);
}

}  // namespace downpour
