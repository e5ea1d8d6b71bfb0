#include <bit>

#include "format/little_endian.h"
#include "format/python/pickle_graph.h"
#include "muster/base/error.h"

namespace muster::format {
namespace {

using NodeKind = PickleNode::Kind;

PickleNode node_of(NodeKind kind) {
  PickleNode node;
  node.kind = kind;
  return node;
}

/// The stack machine of Python's pickles, working on descriptions instead of objects.
class PickleMachine {
 public:
  PickleMachine(std::string_view bytes, std::size_t position, PickleGraph& graph, std::string_view file)
      : bytes_(bytes), position_(position), graph_(graph), file_(file), limit_(bytes.size()) {}

  std::uint32_t run() {
    for (;;) {
      opcode_ = take<std::uint8_t>();
      if (opcode_ == '.') return pop();
      if (!read_scalar() && !read_text() && !read_container() && !read_stack() && !read_object())
        refuse("has the unknown opcode " + std::to_string(opcode_));
    }
  }
  std::size_t position() const { return position_; }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw CheckpointError("MU225", std::string(file_) + ": its pickle " + what + " at byte " +
                                       std::to_string(position_) + "; it is damaged, or no file of torch.save");
  }

  void charge(std::uint64_t bytes) {
    if (!limit_.take(bytes)) refuse("asks for more than " + std::to_string(limit_.most()) + " bytes of memory");
  }

  std::string_view take_bytes(std::uint64_t count) {
    if (count > bytes_.size() - position_) throw PickleCutOff{};
    const auto result = bytes_.substr(position_, count);
    position_ += count;
    return result;
  }
  template <class T>
  T take() {
    return number_at<T>(take_bytes(sizeof(T)), 0);
  }
  std::string_view take_line() {
    const std::size_t end = bytes_.find('\n', position_);
    if (end == std::string_view::npos) throw PickleCutOff{};
    const auto line = take_bytes(end - position_);
    ++position_;
    return line;
  }

  std::uint32_t add(PickleNode node) {
    if (graph_.nodes.size() >= kMaxPickleNodes) refuse("has more than " + std::to_string(kMaxPickleNodes) + " objects");
    charge(sizeof(PickleNode));
    graph_.nodes.push_back(node);
    return static_cast<std::uint32_t>(graph_.nodes.size() - 1);
  }
  bool push(PickleNode node) {
    stack_.push_back(add(node));
    return true;
  }
  bool push_integer(std::int64_t value) {
    PickleNode node = node_of(NodeKind::integer);
    node.integer = value;
    return push(node);
  }
  bool push_text(NodeKind kind, std::string_view text) {
    PickleNode node = node_of(kind);
    node.text = text;
    return push(node);
  }
  std::uint32_t keep(std::vector<std::uint32_t> list) {
    charge(sizeof(std::vector<std::uint32_t>) + list.size() * sizeof(std::uint32_t));
    graph_.lists.push_back(std::move(list));
    return static_cast<std::uint32_t>(graph_.lists.size() - 1);
  }
  bool push_items(NodeKind kind, std::vector<std::uint32_t> items) {
    PickleNode node = node_of(kind);
    if (!items.empty()) node.items = keep(std::move(items));
    return push(node);
  }

  std::size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }
  std::uint32_t pop() {
    if (stack_.size() <= floor()) refuse("takes more than there is");
    const auto node = stack_.back();
    stack_.pop_back();
    return node;
  }
  std::uint32_t top() const {
    if (stack_.size() <= floor()) refuse("takes more than there is");
    return stack_.back();
  }
  std::vector<std::uint32_t> pop_to_mark() {
    if (marks_.empty()) refuse("has no mark where one belongs");
    std::vector<std::uint32_t> items(stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back()), stack_.end());
    stack_.resize(marks_.back());
    marks_.pop_back();
    return items;
  }
  std::vector<std::uint32_t> pop_last(std::size_t count) {
    std::vector<std::uint32_t> items(count);
    for (std::size_t i = count; i-- > 0;) items[i] = pop();
    return items;
  }

  /// Extends a list, or the entries of an object, in place.
  bool extend(std::uint32_t PickleNode::*where, const std::vector<std::uint32_t>& more,
              std::initializer_list<NodeKind> takers) {
    const std::uint32_t node = top();
    bool takes = false;
    for (const NodeKind kind : takers) takes |= graph_.at(node).kind == kind;
    if (!takes) refuse("adds to what takes nothing");
    if (graph_.nodes[node].*where == 0) {
      const auto list = keep({});
      graph_.nodes[node].*where = list;
    }
    auto& list = graph_.lists[graph_.nodes[node].*where];
    charge(more.size() * sizeof(std::uint32_t));
    list.insert(list.end(), more.begin(), more.end());
    return true;
  }
  /// Only the entries of an object are ever used; its items, such as those of a deque, are dropped.
  bool add_items(const std::vector<std::uint32_t>& more, NodeKind taker) {
    return graph_.at(top()).kind == NodeKind::object || extend(&PickleNode::items, more, {taker});
  }
  bool set_entries(const std::vector<std::uint32_t>& pairs) {
    if (pairs.size() % 2 != 0) refuse("has a key without a value");
    return extend(&PickleNode::entries, pairs, {NodeKind::map, NodeKind::object});
  }

  bool push_long(std::uint64_t count) {
    const auto bytes = take_bytes(count);
    if (count > 8) return push_text(NodeKind::huge, bytes);
    std::uint64_t value = count > 0 && (static_cast<std::uint8_t>(bytes.back()) & 0x80) ? ~std::uint64_t{0} : 0;
    for (std::size_t i = bytes.size(); i-- > 0;) value = value << 8 | static_cast<std::uint8_t>(bytes[i]);
    return push_integer(static_cast<std::int64_t>(value));
  }

  bool push_double() {
    std::uint64_t bits = 0;
    for (const char byte : take_bytes(8)) bits = bits << 8 | static_cast<std::uint8_t>(byte);
    PickleNode node = node_of(NodeKind::number);
    node.number = std::bit_cast<double>(bits);
    return push(node);
  }

  bool read_scalar() {
    switch (opcode_) {
      case 'N': stack_.push_back(0); return true;
      case 0x88:
      case 0x89: {
        PickleNode node = node_of(NodeKind::boolean);
        node.integer = opcode_ == 0x88;
        return push(node);
      }
      case 'J': return push_integer(take<std::int32_t>());
      case 'K': return push_integer(take<std::uint8_t>());
      case 'M': return push_integer(take<std::uint16_t>());
      case 0x8a: return push_long(take<std::uint8_t>());
      case 0x8b: return push_long(take<std::uint32_t>());
      case 'G': return push_double();
      default: return false;
    }
  }

  bool read_text() {
    switch (opcode_) {
      case 'X': return push_text(NodeKind::text, take_bytes(take<std::uint32_t>()));
      case 0x8c: return push_text(NodeKind::text, take_bytes(take<std::uint8_t>()));
      case 0x8d: return push_text(NodeKind::text, take_bytes(take<std::uint64_t>()));
      case 'U': return push_text(NodeKind::text, take_bytes(take<std::uint8_t>()));
      case 'T': return push_text(NodeKind::text, take_bytes(take<std::uint32_t>()));
      case 'B': return push_text(NodeKind::bytes, take_bytes(take<std::uint32_t>()));
      case 'C': return push_text(NodeKind::bytes, take_bytes(take<std::uint8_t>()));
      case 0x8e:
      case 0x96: return push_text(NodeKind::bytes, take_bytes(take<std::uint64_t>()));
      default: return false;
    }
  }

  bool read_container() {
    switch (opcode_) {
      case ']': return push_items(NodeKind::list, {});
      case '}': return push_items(NodeKind::map, {});
      case ')': return push_items(NodeKind::tuple, {});
      case 0x8f: return push_items(NodeKind::set, {});
      case 'l': return push_items(NodeKind::list, pop_to_mark());
      case 't': return push_items(NodeKind::tuple, pop_to_mark());
      case 0x91: return push_items(NodeKind::set, pop_to_mark());
      case 0x85:
      case 0x86:
      case 0x87: return push_items(NodeKind::tuple, pop_last(opcode_ - 0x84u));
      case 'a': {
        const auto item = pop();
        return add_items({item}, NodeKind::list);
      }
      case 'e': return add_items(pop_to_mark(), NodeKind::list);
      case 0x90: return add_items(pop_to_mark(), NodeKind::set);
      case 's': return set_entries(pop_last(2));
      case 'u': return set_entries(pop_to_mark());
      case 'd': {
        const auto pairs = pop_to_mark();
        push_items(NodeKind::map, {});
        return set_entries(pairs);
      }
      default: return false;
    }
  }

  bool recall(std::uint32_t index) {
    const auto found = memo_.find(index);
    if (found == memo_.end()) refuse("recalls what was never kept");
    stack_.push_back(found->second);
    return true;
  }
  bool memorize(std::uint64_t index) {
    if (memo_.insert_or_assign(index, top()).second) charge(kMemoEntry);
    return true;
  }

  bool read_stack() {
    switch (opcode_) {
      case '(':
        charge(sizeof(std::size_t));
        marks_.push_back(stack_.size());
        return true;
      case '0': pop(); return true;
      case '1': pop_to_mark(); return true;
      case '2': stack_.push_back(top()); return true;
      case 'q': return memorize(take<std::uint8_t>());
      case 'r': return memorize(take<std::uint32_t>());
      case 0x94: return memorize(memo_.size());
      case 'h': return recall(take<std::uint8_t>());
      case 'j': return recall(take<std::uint32_t>());
      case 0x80: {
        const int protocol = take<std::uint8_t>();
        if (protocol < 2 || protocol > 5) refuse("is of protocol " + std::to_string(protocol) + ", not 2 to 5,");
        return true;
      }
      case 0x95: take<std::uint64_t>(); return true;
      default: return false;
    }
  }

  bool push_global(std::string_view module, std::string_view name) {
    if (module.size() > kMaxPickleName || name.size() > kMaxPickleName)
      refuse("has a class's name of more than " + std::to_string(kMaxPickleName) + " bytes");
    PickleNode node = node_of(NodeKind::global);
    node.text = module;
    node.name = name;
    return push(node);
  }

  bool read_object() {
    switch (opcode_) {
      case 'c': {
        const auto module = take_line();
        return push_global(module, take_line());
      }
      case 0x93: {
        const auto& name = graph_.at(pop());
        const auto& module = graph_.at(pop());
        if (name.kind != NodeKind::text || module.kind != NodeKind::text)
          refuse("names a class by something else than text");
        return push_global(module.text, name.text);
      }
      case 'R':
      case 0x81: return push_items(NodeKind::object, pop_last(2));
      case 0x92: {
        auto parts = pop_last(3);
        const auto& keywords = graph_.at(parts[2]);
        if (keywords.kind != NodeKind::map || keywords.entries != 0) refuse("makes an object with named arguments");
        parts.pop_back();
        return push_items(NodeKind::object, std::move(parts));
      }
      case 'b': {
        const auto state = pop();
        graph_.nodes[top()].state = state;
        return true;
      }
      case 'Q': return push_items(NodeKind::persistent, pop_last(1));
      default: return false;
    }
  }

  static constexpr std::uint64_t kMemoEntry = 48;  // bytes of a map's node and its bucket

  std::string_view bytes_;
  std::size_t position_;
  PickleGraph& graph_;
  std::string_view file_;
  ByteLimit limit_;
  std::vector<std::uint32_t> stack_;
  std::vector<std::size_t> marks_;
  std::unordered_map<std::uint64_t, std::uint32_t> memo_;
  std::uint8_t opcode_ = 0;
};

}  // namespace

std::uint32_t read_pickle(std::string_view bytes, std::size_t& position, PickleGraph& graph, std::string_view file) {
  PickleMachine machine(bytes, position, graph, file);
  const auto root = machine.run();
  graph.bytes += machine.position() - position;
  position = machine.position();
  return root;
}

}  // namespace muster::format
