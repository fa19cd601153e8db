// An overflow of a signed number: what UndefinedBehaviorSanitizer must find.
#include <cstdio>
#include <limits>

int main(int count, char**) {
  const int sum = std::numeric_limits<int>::max() - 1 + 2 * count;
  std::printf("went on %d\n", sum);
  return 0;
}
