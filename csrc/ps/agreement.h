#pragma once

#include <optional>
#include <string>

#include "csrc/ps/protocol_member.h"

// What can be said about an Agreement (protocol.h) before anyone acts on it. Pure.
namespace downpour::ps {

// nullopt when a job may be run with it, else one sentence naming the option, what is expected and what was found.
std::optional<std::string> flaw(const Agreement& agreement);

// The sentence for several workers in a job without servers.
std::string without_a_server(int workers);

// nullopt when equal, else one sentence naming the first difference: "max_lead is 4 here, 8 there", or that of the schemas.
// One without samples says nothing about them (they are agreed upon later than the model), so then they are not compared.
std::optional<std::string> first_difference(const Agreement& here, const Agreement& there);

}  // namespace downpour::ps
