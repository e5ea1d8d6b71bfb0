#include <memory>
#include <random>

#include <gtest/gtest.h>

#include "checks.h"
#include "format/atomic_file.h"

namespace muster::format {
namespace {

BlockFile block_file(const std::filesystem::path& path, std::uint64_t bytes) {
  return {std::make_unique<AtomicFile>(path, Durability::none), bytes};
}

TEST(BlockFile, ChecksumsAreThoseOfTheBlocksHoweverItIsWritten) {
  checks::ScratchFolder folder;
  std::mt19937 random(9);
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{kBlockBytes} - 1, std::size_t{kBlockBytes},
                                 std::size_t{kBlockBytes} * 3 + 12345}) {
    std::string bytes(size, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    auto file = block_file(folder / "x", size);
    for (std::size_t done = 0; done < size;) {
      const std::size_t piece = std::min<std::size_t>(random() % 400'000, size - done);
      file.append(std::string_view(bytes).substr(done, piece));
      if (random() % 5 == 0) file.flush();
      done += piece;
    }
    const auto checksums = file.publish();
    EXPECT_EQ(checks::read(folder / "x"), bytes);
    ASSERT_EQ(checksums.size(), (size + kBlockBytes - 1) / kBlockBytes);
    for (std::size_t i = 0; i < checksums.size(); ++i)
      EXPECT_EQ(checksums[i], checksum_of(std::string_view(bytes).substr(i * kBlockBytes, kBlockBytes)));
  }
}

TEST(BlockFile, WritesManySmallPieces) {
  checks::ScratchFolder folder;
  std::string whole;
  std::vector<std::string> pieces;
  for (int i = 0; i < 5000; ++i)
    whole += pieces.emplace_back(static_cast<std::size_t>(i % 7), static_cast<char>('a' + i % 26));
  auto file = block_file(folder / "x", whole.size());
  for (const std::string& piece : pieces) file.append(piece);
  EXPECT_EQ(file.publish(), std::vector{checksum_of(whole)});
  EXPECT_EQ(checks::read(folder / "x"), whole);
}

TEST(BlockFile, LeavesTheFormerFileIfItIsNotPublished) {
  checks::ScratchFolder folder;
  checks::write(folder / "x", "former");
  block_file(folder / "x", 3).append("new");
  EXPECT_EQ(checks::read(folder / "x"), "former");
  EXPECT_EQ(checks::entries(folder.path()), 1u);
}

}  // namespace
}  // namespace muster::format
