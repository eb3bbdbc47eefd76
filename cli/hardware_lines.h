// The machine in a few lines: what `serve` logs at start and `doctor` prints first.
#pragma once

#include <string>
#include <vector>

#include "engine/device/hardware/system_files.h"

namespace comoe::cli {

// Reads a few dozen small files and measures nothing: milliseconds.
std::vector<std::string> HardwareLines(const device::SystemFiles& files);

// To the log, as `part`.
void LogHardware(const std::string& part);

}  // namespace comoe::cli
