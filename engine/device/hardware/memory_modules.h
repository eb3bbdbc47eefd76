// What memory modules the board has, where the system lets it be read: SMBIOS tables (root only), else EDAC
// (no speed there).
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "engine/device/hardware/system_files.h"

namespace comoe::device {

struct MemoryModules {
  std::string source;             // "DMI", "EDAC"; "": not readable
  int modules = 0;                // sockets with a module in them
  int channels = 0;               // with a module; 0: not known
  double mega_transfers = 0;      // a second, as configured, of the slowest; 0: not known
  double max_mega_transfers = 0;  // what the slowest module is made for; 0: not known
  bool mixed = false;             // modules run or could run at different speeds

  // 8 bytes a transfer and channel; 0 where that is not known.
  double bytes_per_second() const { return mega_transfers * 1e6 * 8.0 * channels; }
};

MemoryModules ReadMemoryModules(const SystemFiles& files);

// From the bytes of /sys/firmware/dmi/tables/DMI: structures of type 17, checked for length; what is cut
// short ends the table.
MemoryModules ParseDmi(absl::string_view table);

}  // namespace comoe::device
