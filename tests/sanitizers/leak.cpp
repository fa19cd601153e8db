// A block that nobody has any more: what LeakSanitizer must find.
#include <cstdio>

int main() {
  int* volatile block = new int[1000];
  block = nullptr;
  std::puts("went on");
  return block == nullptr ? 0 : 1;
}
