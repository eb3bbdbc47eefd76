// Flags that mean something on one kind of device, or under one policy, only: given elsewhere they are a
// mistake that silence would hide.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "cli/engine_options.h"

namespace comoe::cli {

// Notes in options.given which of them are on the command line, before --device auto is decided. That may
// come out either way, so that flags for what it may find are good with it: these go to given_for_card.
void NoteGivenFlags(const CLI::App& app, EngineOptions& options);

// Once the device is decided: a line of the log names those that were for a card where there is none.
void WarnOfIdleFlags(const EngineOptions& options);

// Whether one of them was given that only this policy has.
bool GivenForPolicy(const EngineOptions& options, absl::string_view policy);

// INVALID_ARGUMENT names the first flag given that is not for this device and policy, and what it is for.
absl::Status CheckGivenFlags(const EngineOptions& options);

}  // namespace comoe::cli
