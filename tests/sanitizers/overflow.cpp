// A write behind the end of a block: what AddressSanitizer must find.
#include <cstdio>
#include <vector>

int main(int count, char**) {
  std::vector<int> numbers(static_cast<std::size_t>(count));
  int* const behind = numbers.data() + count;
  *const_cast<int volatile*>(behind) = 1;
  std::puts("went on");
  return 0;
}
