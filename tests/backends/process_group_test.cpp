#include "backends/process_group_downpour.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "backends/init_process_group.h"
#include "csrc/base/error.h"
#include "tests/backends/rank_threads.h"

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace downpour::backends {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::HasSubstr;
using Tensors = std::vector<at::Tensor>;
using BackendPtr = c10::intrusive_ptr<ProcessGroupDownpour>;

// The backend alone, without c10d's ProcessGroup around it.
void with_backends(int world, const std::function<void(ProcessGroupDownpour& backend)>& part,
                   Kind kind = Kind::kSharedMemory) {
  with_ranks(world, [&](int rank, const StorePtr& store) {
    const auto backend = c10::make_intrusive<ProcessGroupDownpour>(store, rank, world, options_of(kind, rank));
    backend->barrier()->wait();
    part(*backend);
  });
}

c10d::AllreduceOptions synchronous() {
  c10d::AllreduceOptions options;
  options.asyncOp = false;
  return options;
}

// ---- works -----------------------------------------------------------------------------------------------------------------

TEST(Works, ManyInFlightKeepTheirOrderAndHoldTheirOutputs) {
  with_backends(3, [](ProcessGroupDownpour& backend) {
    std::vector<Tensors> tensors;
    std::vector<c10::intrusive_ptr<c10d::Work>> works;
    for (int i = 0; i < 20; ++i) {
      tensors.push_back({at::full({1000 + i}, backend.getRank() + i, at::kFloat)});
      works.push_back(backend.allreduce(tensors.back()));
    }
    for (int i = 19; i >= 0; --i) {
      const auto& work = works[static_cast<std::size_t>(i)];
      ASSERT_TRUE(work->wait());
      EXPECT_TRUE(work->isCompleted());
      EXPECT_TRUE(work->isSuccess());
      EXPECT_TRUE(at::equal(work->result().at(0), at::full({1000 + i}, 3 + 3 * i, at::kFloat)));
      work->getFuture()->wait();
      EXPECT_TRUE(work->getFuture()->value().toTensorVector().at(0).is_same(work->result().at(0)));
      EXPECT_EQ(work->getSequencenumber(), static_cast<std::uint64_t>(i + 1)) << "after the barrier";
    }
    EXPECT_EQ(backend.getSequenceNumberForGroup(), 21u);
  });
}

TEST(Works, ASynchronousCallIsDoneWhenItReturnsAndComesBehindThoseUnderWay) {
  with_backends(2, [](ProcessGroupDownpour& backend) {
    Tensors first{at::ones({100'000})}, second{at::ones({1})};
    const auto begun = backend.allreduce(first);
    const auto work = backend.allreduce(second, synchronous());
    EXPECT_TRUE(work->isCompleted());
    EXPECT_TRUE(begun->isCompleted());
    EXPECT_EQ(second[0].item<float>(), 2);
  });
}

TEST(Works, AnErrorReachesTheFutureToo) {
  std::promise<void> timed_out;
  const auto rank0_done = timed_out.get_future().share();
  with_backends(2, [&](ProcessGroupDownpour& backend) {
    if (backend.getRank() == 1) {
      rank0_done.wait();
      return;
    }
    Tensors tensors{at::ones({4})};
    c10d::AllreduceOptions options;
    options.timeout = milliseconds(100);
    const auto work = backend.allreduce(tensors, options);
    const std::string error = error_of([&] { work->wait(); });
    EXPECT_THAT(error, AllOf(HasSubstr("all_reduce of 4 float, sum"), HasSubstr("rank 1")));
    EXPECT_FALSE(work->isSuccess());
    EXPECT_THROW(std::rethrow_exception(work->exception()), TimeoutError);
    EXPECT_TRUE(work->getFuture()->hasError());
    EXPECT_EQ(backend.getError(), c10d::ErrorType::TIMEOUT);
    EXPECT_EQ(error_of([&] { backend.allreduce(tensors); }), error) << "a broken group says the first reason";
    timed_out.set_value();
  });
}

TEST(Works, TheGroupsTimeoutHoldsWhereACallNamesNone) {
  std::promise<void> timed_out;
  const auto rank0_done = timed_out.get_future().share();
  with_backends(2, [&](ProcessGroupDownpour& backend) {
    if (backend.getRank() == 1) {
      rank0_done.wait();
      return;
    }
    backend.setTimeout(milliseconds(100));
    EXPECT_EQ(backend.getBackendOptions()->timeout, milliseconds(100));
    EXPECT_THROW(backend.barrier()->wait(), TimeoutError);
    timed_out.set_value();
  });
}

// ---- what cannot be --------------------------------------------------------------------------------------------------------

TEST(BadInput, IsRefusedBeforeAnyEffectAndTheGroupGoesOn) {
  with_backends(2, [](ProcessGroupDownpour& backend) {
    const at::Tensor four = at::ones({4});
    const auto all_reduce = [&](Tensors tensors, c10d::ReduceOp op = c10d::ReduceOp::SUM) {
      c10d::AllreduceOptions options;
      options.reduceOp = op;
      return error_of([&] { backend.allreduce(tensors, options)->wait(); });
    };
    EXPECT_THAT(all_reduce({}), HasSubstr("allreduce: expected 1 tensor, found 0"));
    EXPECT_THAT(all_reduce({four, four}), HasSubstr("expected 1 tensor, found 2"));
    EXPECT_THAT(all_reduce({at::Tensor()}), HasSubstr("found an undefined one"));
    EXPECT_THAT(all_reduce({four.to_sparse()}), HasSubstr("expected a dense tensor, found layout Sparse"));
    EXPECT_THAT(all_reduce({at::empty({4}, at::kMeta)}), HasSubstr("found meta"));
    EXPECT_THAT(all_reduce({four.to(at::kInt)}, c10d::ReduceOp::AVG), HasSubstr("avg"));
    EXPECT_THAT(all_reduce({four.to(at::kComplexFloat)}, c10d::ReduceOp::MAX), HasSubstr("max"));
    EXPECT_THAT(all_reduce({four.to(at::kFloat8_e5m2)}), HasSubstr("sum"));

    Tensors inputs{four};
    std::vector<Tensors> one{{at::empty({4})}}, other_size{{at::empty({4}), at::empty({5})}},
        other_type{{at::empty({4}), at::empty({4}, at::kDouble)}};
    EXPECT_THAT(error_of([&] { backend.allgather(one, inputs); }), HasSubstr("expected 2 tensors, one for each rank"));
    EXPECT_THAT(error_of([&] { backend.allgather(other_size, inputs); }), HasSubstr("expected 16 bytes, found 20"));
    EXPECT_THAT(error_of([&] { backend.allgather(other_type, inputs); }), HasSubstr("expected tensors of one dtype"));
    at::Tensor seven = at::empty({7}), input = four;
    EXPECT_THAT(error_of([&] { backend._allgather_base(seven, input); }), HasSubstr("expected 2 times the 4 elements"));
    std::vector<std::int64_t> splits{1, 2}, none;
    EXPECT_THAT(error_of([&] { backend.alltoall_base(input, input, none, splits); }), HasSubstr("2 splits"));
    EXPECT_THAT(error_of([&] { backend.alltoall_base(seven, input, none, none); }), HasSubstr("7 rows"));

    c10d::BroadcastOptions options;
    options.rootRank = 2;
    EXPECT_THAT(error_of([&] { backend.broadcast(inputs, options); }), HasSubstr("2"));
    EXPECT_THAT(error_of([&] { backend.send(inputs, 2, 0); }), HasSubstr("expected another rank of 0 to 1, found 2"));
    EXPECT_THAT(error_of([&] { backend.send(inputs, backend.getRank(), 0); }), HasSubstr("which is this one"));

    EXPECT_EQ(all_reduce({four}), "");
    EXPECT_EQ(backend.getError(), c10d::ErrorType::SUCCESS);
  });
}

using CallOf = std::function<c10::intrusive_ptr<c10d::Work>(ProcessGroupDownpour& backend)>;

void expect_all_hear(Kind kind, const CallOf& of_rank_1, const std::string& what_it_calls) {
  std::atomic<int> heard{0};
  with_backends(
      3,
      [&](ProcessGroupDownpour& backend) {
        Tensors tensors{at::ones({4})};
        const std::string error =
            error_of([&] { (backend.getRank() == 1 ? of_rank_1(backend) : backend.allreduce(tensors))->wait(); });
        EXPECT_THAT(error, AllOf(HasSubstr("all_reduce of 4 float, sum"), HasSubstr(what_it_calls)));
        ++heard;
      },
      kind);
  EXPECT_EQ(heard, 3);
}

TEST(Disagreement, IsNamedOnEveryRank) {
  for (const Kind kind : {Kind::kSharedMemory, Kind::kTcp, Kind::kTwoLevels}) {
    SCOPED_TRACE(name(kind));
    expect_all_hear(
        kind,
        [](ProcessGroupDownpour& backend) {
          Tensors t{at::ones({4})};
          return backend.broadcast(t);
        },
        "broadcast of 4 float");
    expect_all_hear(
        kind,
        [](ProcessGroupDownpour& backend) {
          Tensors t{at::ones({5})};
          return backend.allreduce(t);
        },
        "all_reduce of 5 float");
    expect_all_hear(
        kind,
        [](ProcessGroupDownpour& backend) {
          Tensors t{at::ones({4}, at::kDouble)};
          return backend.allreduce(t);
        },
        "all_reduce of 4 double");
    expect_all_hear(
        kind,
        [](ProcessGroupDownpour& backend) {
          Tensors t{at::ones({4})};
          c10d::AllreduceOptions options;
          options.reduceOp = c10d::ReduceOp::MAX;
          return backend.allreduce(t, options);
        },
        "max");
  }
}

TEST(Rendezvous, TwoProcessesThatClaimOneRankHearOfIt) {
  const StorePtr store = c10::make_intrusive<c10d::HashStore>();
  const auto terms = [] { return options_of(Kind::kSharedMemory, 0, milliseconds(500)); };
  std::thread first([&] { EXPECT_THROW(ProcessGroupDownpour(store, 0, 2, terms()), CommError); });
  while (!store->check({"address/0"})) {
    std::this_thread::yield();
  }
  EXPECT_THAT(error_of([&] { ProcessGroupDownpour(store, 0, 2, terms()); }),
              HasSubstr("another process has this rank"));
  first.join();
}

TEST(Rendezvous, ARankThatNeverComesIsNamed) {
  const StorePtr store = c10::make_intrusive<c10d::HashStore>();
  EXPECT_THAT(
      error_of([&] { ProcessGroupDownpour(store, 0, 2, options_of(Kind::kSharedMemory, 0, milliseconds(200))); }),
      AllOf(HasSubstr("rank 1"), HasSubstr("0.2 s")));
}

TEST(Rendezvous, AnyStoreWillDo) {
  const std::string path = testing::TempDir() + "/store_" + std::to_string(getpid());
  with_ranks(2, [&](int rank, const StorePtr&) {
    const auto store = c10::make_intrusive<c10d::FileStore>(path, 2);
    const auto backend =
        c10::make_intrusive<ProcessGroupDownpour>(store, rank, 2, options_of(Kind::kSharedMemory, rank));
    Tensors tensors{at::ones({3})};
    backend->allreduce(tensors)->wait();
    EXPECT_EQ(tensors[0].sum().item<float>(), 6);
  });
}

// ---- endings -----------------------------------------------------------------------------------------------------------------

TEST(Endings, AnAbortReachesEveryRankAndItsWorks) {
  with_backends(2, [](ProcessGroupDownpour& backend) {
    Tensors tensors{at::ones({4})};
    if (backend.getRank() == 0) {
      backend.abort();
    }
    EXPECT_THAT(error_of([&] {
                  for (;;)
                    backend.allreduce(tensors)->wait();
                }),
                HasSubstr("abort() was called on rank 0"));
    EXPECT_EQ(backend.getError(), c10d::ErrorType::COMM_ERROR);
    EXPECT_THAT(error_of([&] { backend.send(tensors, 1 - backend.getRank(), 0); }), HasSubstr("abort() was called"));
  });
}

TEST(Endings, ShutdownDoesWhatIsUnderWayFirst) {
  with_backends(2, [](ProcessGroupDownpour& backend) {
    Tensors tensors{at::ones({100'000})};
    const auto work = backend.allreduce(tensors);
    backend.shutdown();
    EXPECT_TRUE(work->isSuccess());
    EXPECT_THAT(error_of([&] { backend.allreduce(tensors); }), HasSubstr("was shut down"));
    backend.shutdown();
    backend.abort();
  });
}

TEST(Endings, ADestructorWithWorksUnderWayEndsThem) {
  c10::intrusive_ptr<c10d::Work> left;
  const at::Tensor tensor = at::ones({4});
  std::promise<void> destroyed;
  const auto is_destroyed = destroyed.get_future().share();
  with_ranks(2, [&](int rank, const StorePtr& store) {
    auto backend = c10::make_intrusive<ProcessGroupDownpour>(store, rank, 2, options_of(Kind::kSharedMemory, rank));
    backend->barrier()->wait();
    if (rank == 0) {
      Tensors tensors{tensor};
      left = backend->allreduce(tensors);
      backend.reset();
      destroyed.set_value();
    }
    is_destroyed.wait();
  });
  EXPECT_THAT(error_of([&] { left->wait(); }), HasSubstr("destroyed"));
}

// ---- messages ------------------------------------------------------------------------------------------------------------------

TEST(Messages, ComeFromAnyRankWithItsName) {
  with_backends(3, [](ProcessGroupDownpour& backend) {
    if (backend.getRank() != 0) {
      Tensors tensors{at::full({5}, backend.getRank(), at::kInt)};
      backend.send(tensors, 0, 7)->wait();
    } else {
      std::set<int> sources;
      for (int i = 0; i < 2; ++i) {
        Tensors tensors{at::zeros({5}, at::kInt)};
        const auto work = backend.recvAnysource(tensors, 7);
        work->wait();
        EXPECT_EQ(tensors[0][4].item<int>(), work->sourceRank());
        sources.insert(work->sourceRank());
      }
      EXPECT_EQ(sources, (std::set<int>{1, 2}));
    }
    backend.barrier()->wait();
  });
}

TEST(Messages, ABatchThatWouldDeadlockInOrderIsCoalesced) {
  with_backends(2, [](ProcessGroupDownpour& backend) {
    const int other = 1 - backend.getRank();
    Tensors sent{at::full({300'000}, backend.getRank(), at::kInt)}, received{at::zeros({300'000}, at::kInt)},
        summed{at::ones({2})};
    backend.startCoalescing();
    backend.recv(received, other, 0);
    backend.send(sent, other, 0);
    backend.allreduce(summed, synchronous());
    const auto work = backend.endCoalescing();
    EXPECT_TRUE(work->wait());
    EXPECT_TRUE(at::equal(received[0], at::full({300'000}, other, at::kInt)));
    EXPECT_EQ(summed[0].sum().item<float>(), 4);
    EXPECT_THAT(error_of([&] { backend.endCoalescing(); }), HasSubstr("without startCoalescing"));
  });
}

// ---- tensors ---------------------------------------------------------------------------------------------------------------------

TEST(TensorsOfAnyKind, AreMovedAsTheyAre) {
  with_backends(2, [](ProcessGroupDownpour& backend) {
    const at::Tensor numbers = at::arange(10).to(at::kFloat8_e4m3fn);
    Tensors eight_bits{backend.getRank() == 0 ? numbers : at::zeros({10}).to(at::kFloat8_e4m3fn)};
    backend.broadcast(eight_bits)->wait();
    EXPECT_TRUE(at::equal(eight_bits[0].to(at::kFloat), at::arange(10).to(at::kFloat)));

    Tensors conjugated{at::full({3}, c10::complex<float>(1, 2), at::kComplexFloat).conj()};
    backend.allreduce(conjugated)->wait();
    EXPECT_TRUE(at::equal(conjugated[0].resolve_conj(), at::full({3}, c10::complex<float>(2, -4), at::kComplexFloat)));

    Tensors transposed{at::arange(6).view({2, 3}).t()};
    backend.allreduce(transposed)->wait();
    EXPECT_TRUE(at::equal(transposed[0], at::arange(6).view({2, 3}).t() * 2));

    at::Tensor leaf = at::ones({3}, at::TensorOptions().requires_grad(true));
    Tensors parameter{leaf};
    backend.broadcast(parameter)->wait();
    Tensors scalar{at::ones({})};
    backend.allreduce(scalar)->wait();
    EXPECT_EQ(scalar[0].item<float>(), 2);
  });
}

TEST(TensorsOfAnyKind, InSharedMemoryAreReducedWhereTheyLie) {
  at::Tensor kept;
  for (const Kind kind : {Kind::kSharedMemory, Kind::kTcp}) {
    with_backends(
        2,
        [&](ProcessGroupDownpour& backend) {
          at::Tensor tensor = backend.allocate({3, 1000}, at::kFloat);
          tensor.fill_(backend.getRank() + 1);
          Tensors tensors{tensor};
          backend.allreduce(tensors)->wait();
          EXPECT_TRUE(at::equal(tensor, at::full({3, 1000}, 3.f)));
          EXPECT_EQ(backend.allocate({0}, at::kFloat).numel(), 0);
          if (backend.getRank() == 0) {
            kept = tensor;
          }
        },
        kind);
    EXPECT_TRUE(at::equal(kept, at::full({3, 1000}, 3.f))) << "it outlives the group";
  }
}

// ---- parts of a group --------------------------------------------------------------------------------------------------------

TEST(Split, MakesGroupsOfSomeRanks) {
  with_ranks(4, [](int rank, const StorePtr& store) {
    const auto backend =
        c10::make_intrusive<ProcessGroupDownpour>(store, rank, 4, options_of(Kind::kSharedMemory, rank));
    const std::vector<int> odd{1, 3}, even{2, 0};
    const auto& mine = rank % 2 == 0 ? even : odd;
    const StorePtr place = c10::make_intrusive<c10d::PrefixStore>(rank % 2 == 0 ? "even" : "odd", store);
    const auto part = backend->split(place, mine, nullptr);
    EXPECT_EQ(part->getSize(), 2);
    EXPECT_EQ(part->getRank(), rank == 0 ? 1 : rank == 2 ? 0 : rank / 2);
    EXPECT_EQ(backend->split(place, rank % 2 == 0 ? odd : even, nullptr), nullptr);
    Tensors tensors{at::full({2}, rank)};
    part->allreduce(tensors)->wait();
    EXPECT_EQ(tensors[0][0].item<int>(), rank % 2 == 0 ? 2 : 4);
    backend->barrier()->wait();
  });
}

// ---- the parts of c10d that call us by name ----------------------------------------------------------------------------------

TEST(Named, FunctionalCollectivesFindTheGroup) {
  std::atomic<int> right{0};
  with_ranks(2, [&](int rank, const StorePtr& store) {
    const std::string name = "functional of " + std::to_string(rank);
    InitOptions options;
    options.name(name);
    const auto group = make_process_group(store, rank, 2, options);
    auto& dispatcher = c10::Dispatcher::singleton();
    const auto all_reduce = dispatcher.findSchemaOrThrow("_c10d_functional::all_reduce", "");
    const auto wait = dispatcher.findSchemaOrThrow("_c10d_functional::wait_tensor", "");
    torch::jit::Stack stack{at::ones({3}), std::string("sum"), name};
    all_reduce.callBoxed(&stack);
    wait.callBoxed(&stack);
    right += at::equal(stack.back().toTensor(), at::full({3}, 2.f));

    const auto gather = dispatcher.findSchemaOrThrow("_c10d_functional::all_gather_into_tensor", "");
    stack = {at::full({2}, rank), std::int64_t{2}, name};
    gather.callBoxed(&stack);
    wait.callBoxed(&stack);
    right += at::equal(stack.back().toTensor(), at::tensor({0, 0, 1, 1}));

    const auto scatter = dispatcher.findSchemaOrThrow("_c10d_functional::reduce_scatter_tensor", "");
    stack = {at::arange(4), std::string("sum"), std::int64_t{2}, name};
    scatter.callBoxed(&stack);
    wait.callBoxed(&stack);
    right += at::equal(stack.back().toTensor(), at::arange(4).narrow(0, rank * 2, 2) * 2);
    destroy_process_group(group);
    EXPECT_THROW(c10d::resolve_process_group(name), std::exception);
  });
  EXPECT_EQ(right, 6);
}

TEST(Named, AWorldOfOneNeedsNoLauncher) {
  for (const char* variable : {"RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "WORLD_SIZE"}) {
    ASSERT_EQ(std::getenv(variable), nullptr) << variable;
  }
  const auto group = init_process_group();
  EXPECT_EQ(group->getSize(), 1);
  Tensors tensors{at::ones({3})};
  group->allreduce(tensors)->wait();
  EXPECT_EQ(tensors[0].sum().item<float>(), 3);
  EXPECT_THAT(error_of([] { init_process_group(); }), HasSubstr("there is a process group 'default' already"));
  EXPECT_THAT(error_of([] { init_process_group(InitOptions().name("b").cuda_backend("gloo")); }),
              HasSubstr("expected 'downpour' or 'nccl', found 'gloo'"));
  destroy_process_group(group);
  destroy_process_group(init_process_group());
}

TEST(Named, TheBarrierOfAMonitorNamesWhoIsMissing) {
  std::promise<void> timed_out;
  const auto done = timed_out.get_future().share();
  with_backends(2, [&](ProcessGroupDownpour& backend) {
    if (backend.getRank() == 1) {
      done.wait();
      return;
    }
    c10d::BarrierOptions options;
    options.timeout = milliseconds(100);
    EXPECT_THAT(error_of([&] { backend.monitoredBarrier(options); }), HasSubstr("rank 1"));
    timed_out.set_value();
  });
}

}  // namespace
}  // namespace downpour::backends
