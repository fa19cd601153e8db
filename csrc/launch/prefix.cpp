#include "csrc/launch/prefix.h"

#include <array>

namespace downpour::launch {
namespace {

constexpr std::array<std::string_view, 4> kFields = {"{role}", "{rank}", "{host}", "{time}"};

void replace_all(std::string& text, std::string_view field, std::string_view value) {
  for (std::size_t at = text.find(field); at != std::string::npos; at = text.find(field, at + value.size())) {
    text.replace(at, field.size(), value);
  }
}

void check_field(std::string_view field) {
  for (const auto& known : kFields) {
    if (field == known) {
      return;
    }
  }
  throw Error(concat("--prefix: '", field, "' is not a field; expected {role}, {rank}, {host} or {time}"));
}

}  // namespace

Prefix::Prefix(std::string_view pattern) : pattern_(pattern) {
  for (std::size_t open = pattern.find('{'); open != std::string_view::npos; open = pattern.find('{', open + 1)) {
    const auto shut = pattern.find('}', open);
    check_field(pattern.substr(open, shut == std::string_view::npos ? shut : shut - open + 1));
  }
}

Prefix Prefix::of(Target who, std::string_view host) const {
  Prefix result;
  result.pattern_ = pattern_;
  replace_all(result.pattern_, "{role}", role_text(who));
  replace_all(result.pattern_, "{rank}", std::to_string(who.index));
  replace_all(result.pattern_, "{host}", host);
  return result;
}

std::string Prefix::text(std::string_view time) const {
  std::string result = pattern_;
  replace_all(result, "{time}", time);
  return result;
}

}  // namespace downpour::launch
