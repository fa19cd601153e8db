// Two threads that count without a lock: what ThreadSanitizer must find.
#include <cstdio>
#include <thread>

int main() {
  int counter = 0;
  const auto count = [&counter] {
    for (int i = 0; i < 1000; ++i) {
      counter = counter + 1;
    }
  };
  std::thread other(count);
  count();
  other.join();
  std::printf("went on %d\n", counter);
  return 0;
}
