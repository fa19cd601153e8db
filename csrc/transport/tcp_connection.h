#pragma once

#include "csrc/base/fd.h"
#include "csrc/transport/frame_reader.h"
#include "csrc/transport/framed_connection.h"
#include "csrc/transport/page_pipe.h"
#include "csrc/transport/send_queue.h"
#include "csrc/transport/window.h"

namespace downpour::transport {

// A connection over a TCP socket whose handshake is done: bulk bytes go from the sender's memory to the kernel, or stay there
// until they are read (ConnectOptions::lasting_bulk), and from the kernel to the receiver's window.
class TcpConnection final : public FramedConnection {
 public:
  // `window`: of terms.incoming_window_bytes().
  TcpConnection(Loop& loop, Fd socket, Window window, Terms terms);
  ~TcpConnection() override { close(); }

  Medium medium() const override { return Medium::kTcp; }
  MutableBytes outgoing() override { return {}; }
  MutableBytes incoming() override { return window_.bytes(); }
  void keep_bulk() override;
  bool idle() const override { return queue_.empty(); }
  void start_heartbeat(Duration interval, Duration warn_after, Duration silence) override;

 private:
  void transmit(const FrameHeader& header, Bytes body, Bytes bulk) override;
  void flush() override;
  void end() override;

  void on_events(std::uint32_t events);
  void receive();
  bool dispatch_frames();  // false when closed or destroyed
  bool dispatch_next();
  void send_queued();
  ssize_t send_some();
  void want_room(bool wanted);
  void lose(int error);

  Loop& loop_;
  Fd socket_;
  Window window_;
  FrameReader reader_;
  SendQueue queue_;
  PagePipe page_pipe_;
  bool wants_room_ = false;      // EPOLLOUT is watched
  bool is_dispatching_ = false;  // answers gather and leave in one call
  int send_error_ = 0;
};

}  // namespace downpour::transport
