// Accelerators on the PCI bus and the links between them and the processor, as sysfs tells.
//
// A link is as fast as its narrowest part: a card of 16 lanes in a slot of 8, or behind a switch, is one of
// 8. Speeds are to be read while bytes move: cards clock idle links down.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/device/hardware/system_files.h"

namespace comoe::device {

// One end of a link. 0: not readable (virtual machines often hide it).
struct PciPort {
  std::string address;   // "0000:01:00.0"
  double speed_gts = 0;  // gigatransfers a second of one lane, now...
  double max_speed_gts = 0;
  int width = 0;  // lanes, now...
  int max_width = 0;
};

struct PciAccelerator {
  std::string address;
  std::uint32_t vendor = 0;
  std::uint32_t product = 0;
  std::string name;           // as its driver says, or "10de:2684"
  std::string driver;         // bound to it; "" for none
  int numa_node = -1;         // -1: not known, or there is one only
  std::vector<PciPort> path;  // the card's own end first, the root port last
};

inline constexpr std::uint32_t kNvidia = 0x10de;

// Display controllers and processing accelerators, by address.
std::vector<PciAccelerator> FindAccelerators(const SystemFiles& files);

// The narrowest part of a path.
struct PciLink {
  double speed_gts = 0;      // now; 0: not readable
  int width = 0;             // now
  double max_speed_gts = 0;  // what every part of the path can do
  int max_width = 0;
  int card_width = 0;  // what the card itself can do
  double card_speed_gts = 0;
  std::string narrowest;  // address of the port with the fewest lanes now
};
PciLink Narrowest(const PciAccelerator& card);

// Payload bytes a second in one direction before packet headers: 8b/10b code up to 5 GT/s, 128b/130b up to
// 32, FLITs of 242 in 256 bytes above.
double LinkBytesPerSecond(double speed_gts, int width);

// "PCIe 4.0 x16"; speeds that are none of the standard's as "12 GT/s x16".
std::string LinkName(double speed_gts, int width);

}  // namespace comoe::device
