#pragma once

namespace downpour {

// From now on SIGUSR2 makes this process write the stacks of all its threads to standard error and go on: where does a job hang?
// `kill -USR2 PID`, or the launcher's own PID for all workers. Does nothing when the program has a handler of its own, and in
// every call after the first. Functions of the program itself have names only where it is linked with -rdynamic; addr2line reads
// the addresses of others.
// Threads: any. The handler takes no lock of ours and allocates nothing.
void print_stacks_on_signal();
bool stacks_are_printed_on_signal();

}  // namespace downpour
