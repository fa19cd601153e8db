#include "csrc/ps/agreement.h"

#include <algorithm>

#include "csrc/base/error.h"
#include "csrc/ps/lease_book.h"

namespace downpour::ps {
namespace {

template <typename T>
std::optional<std::string> at_least(const char* option, T least, T found) {
  if (found >= least) return std::nullopt;
  return concat(option, ": expected ", least, " or more, found ", found);
}

template <typename T>
std::optional<std::string> compare(const char* option, const T& here, const T& there) {
  if (here == there) return std::nullopt;
  return concat(option, " is ", +here, " here, ", +there, " there");
}

}  // namespace

std::optional<std::string> flaw(const Agreement& agreement) {
  std::optional<std::string> found;
  if ((found = at_least<std::int64_t>("max_staleness", -1, agreement.max_staleness)) ||
      (found = at_least<std::int64_t>("max_lead", -1, agreement.max_lead)) ||
      (found = at_least<std::int32_t>("warm_start_steps", 0, agreement.warm_start_steps)) ||
      (found = at_least<std::int32_t>("warm_up_steps", 0, agreement.warm_up_steps)) ||
      (found = at_least<std::int64_t>("samples", 0, agreement.samples)) ||
      (found = at_least<std::int64_t>("lease_samples", agreement.samples > 0 ? 1 : 0, agreement.lease_samples))) {
    return found;
  }
  if (agreement.warm_start_steps > 0 && agreement.warm_up_steps > 0) {
    return "warm_start_steps and warm_up_steps: expected one of them at most";
  }
  try {
    LeaseBook(agreement.samples, std::max<std::int64_t>(agreement.lease_samples, 1), agreement.epochs);
  } catch (const Error& error) {
    return error.what();
  }
  return std::nullopt;
}

std::string without_a_server(int workers) {
  return concat(workers,
                " workers share no parameters without a server; start them with `downpour run --servers 1 --workers ",
                workers, " -- program`");
}

std::optional<std::string> first_difference(const Agreement& here, const Agreement& there) {
  std::optional<std::string> found;
  if ((found = first_difference(here.schema, there.schema)) ||
      (found = compare("max_staleness", here.max_staleness, there.max_staleness)) ||
      (found = compare("max_lead", here.max_lead, there.max_lead)) ||
      (found = compare("warm_start_steps", here.warm_start_steps, there.warm_start_steps)) ||
      (found = compare("warm_up_steps", here.warm_up_steps, there.warm_up_steps)) || here.samples == 0 ||
      there.samples == 0) {
    return found;
  }
  if ((found = compare("samples", here.samples, there.samples)) ||
      (found = compare("lease_samples", here.lease_samples, there.lease_samples)) ||
      (found = compare("epochs", here.epochs, there.epochs)) || (found = compare("seed", here.seed, there.seed)) ||
      (found = compare("shuffle", here.shuffle, there.shuffle))) {
    return found;
  }
  return std::nullopt;
}

}  // namespace downpour::ps
