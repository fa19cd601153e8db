#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <utility>

#include "csrc/base/environment.h"
#include "csrc/ps/client.h"
#include "csrc/ps/connector.h"
#include "csrc/ps/member.h"

// A worker's place in a job, without LibTorch: what the test programs and the tests of whole servers begin with.
namespace downpour::ps {

// As the launcher's variables say.
inline MemberOptions member_options(const Environment& environment) {
  MemberOptions options;
  options.job = environment.job;
  options.rank = environment.rank;
  options.coordinator = environment.coordinator;
  options.silence = environment.silence.value_or(options.silence);
  return options;
}

// Joins, agrees and reaches the shards. `network` and `client` say what the job does not.
class JobWorker {
 public:
  JobWorker(const MemberOptions& options, const Agreement& agreement, NetworkOptions network = {},
            ClientOptions client_options = {})
      : member(options),
        connector_(clock_, complete(std::move(network), member)),
        client(agreement.schema, member.joined().shards, connector_, complete(client_options, options, member)) {
    member.agree(agreement);
    client.open();
  }

  Member member;

 private:
  static NetworkOptions complete(NetworkOptions network, const Member& member) {
    network.servers = member.joined().servers;
    network.shard_count = member.joined().shards;
    network.check = [&member] { member.check(); };
    return network;
  }
  static ClientOptions complete(ClientOptions client, const MemberOptions& options, const Member& member) {
    client.job = options.job;
    client.rank = options.rank;
    client.incarnation = member.joined().incarnation;
    return client;
  }

  SteadyClock clock_;
  NetworkConnector connector_;

 public:
  Client client;
};

// Until the test has written a byte there.
inline void wait_at(const std::string& fifo) {
  const int fd = ::open(fifo.c_str(), O_RDONLY);
  char byte = 0;
  [[maybe_unused]] const ssize_t count = ::read(fd, &byte, 1);
  ::close(fd);
}

// Says "half-way", and waits at FIFO.RANK unless the FIFO's name is empty.
inline void wait_half_way(const std::string& fifo, int rank) {
  std::puts("half-way");
  std::fflush(stdout);
  if (!fifo.empty()) {
    wait_at(fifo + "." + std::to_string(rank));
  }
}

}  // namespace downpour::ps
