#include "track/png.h"

#include <algorithm>

#include "base/crc.h"
#include "base/log.h"
#include "muster/base/error.h"

namespace muster {
namespace {

using Bytes = std::vector<uint8_t>;

void put_big_endian(Bytes& bytes, uint32_t number) {
  for (const int shift : {24, 16, 8, 0}) bytes.push_back(static_cast<uint8_t>(number >> shift));
}

/// Source of the chunk and its CRC: PNG specification, 5.3 and annex D.
void put_chunk(Bytes& file, std::string_view type, const Bytes& content) {
  put_big_endian(file, static_cast<uint32_t>(content.size()));
  const auto begin = file.size();
  file.insert(file.end(), type.begin(), type.end());
  file.insert(file.end(), content.begin(), content.end());
  put_big_endian(file, crc_of<kCrc32>({reinterpret_cast<const char*>(file.data()) + begin, file.size() - begin}));
}

/// The bytes as a zlib stream of stored blocks. Source: RFC 1950 and 1951.
Bytes stored(const Bytes& bytes) {
  constexpr std::size_t kBlock = 65535;  // limit on a stored block in bytes (RFC 1951, 3.2.4)
  Bytes stream = {0x78, 0x01};
  for (std::size_t at = 0; at < bytes.size(); at += kBlock) {
    const auto size = static_cast<uint16_t>(std::min(kBlock, bytes.size() - at));
    stream.push_back(at + size == bytes.size() ? 1 : 0);
    for (const auto number : {size, static_cast<uint16_t>(~size)}) {
      stream.push_back(static_cast<uint8_t>(number & 0xff));
      stream.push_back(static_cast<uint8_t>(number >> 8));
    }
    stream.insert(stream.end(), bytes.begin() + static_cast<std::ptrdiff_t>(at),
                  bytes.begin() + static_cast<std::ptrdiff_t>(at + size));
  }
  uint32_t a = 1, b = 0;
  for (const auto byte : bytes) a = (a + byte) % 65521, b = (b + a) % 65521;
  put_big_endian(stream, b << 16 | a);
  return stream;
}

}  // namespace

std::vector<uint8_t> encode_png(std::span<const uint8_t> pixels, const ImageSize& size, int channels) {
  const auto row = static_cast<std::size_t>(std::max<int64_t>(size.width, 0)) * static_cast<std::size_t>(channels);
  if ((channels != 1 && channels != 3 && channels != 4) || size.width < 1 || size.height < 1 ||
      pixels.size() != row * static_cast<std::size_t>(size.height))
    throw UsageError(
        "MU455", log::str("an image has ", size.height, " rows, ", size.width, " columns, ", channels, " channels and ",
                          pixels.size(), " bytes; give 1, 3 or 4 channels, a byte for each"));
  Bytes lines;
  lines.reserve(pixels.size() + static_cast<std::size_t>(size.height));
  for (std::size_t at = 0; at < pixels.size(); at += row) {
    lines.push_back(0);  // no filter
    lines.insert(lines.end(), pixels.begin() + static_cast<std::ptrdiff_t>(at),
                 pixels.begin() + static_cast<std::ptrdiff_t>(at + row));
  }
  Bytes header;
  put_big_endian(header, static_cast<uint32_t>(size.width));
  put_big_endian(header, static_cast<uint32_t>(size.height));
  const uint8_t color = channels == 1 ? 0 : channels == 3 ? 2 : 6;
  for (const uint8_t byte : {uint8_t{8}, color, uint8_t{0}, uint8_t{0}, uint8_t{0}}) header.push_back(byte);
  Bytes file = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
  put_chunk(file, "IHDR", header);
  put_chunk(file, "IDAT", stored(lines));
  put_chunk(file, "IEND", {});
  return file;
}

}  // namespace muster
