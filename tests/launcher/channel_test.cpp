#include "launcher/rendezvous/channel.h"

#include <sys/socket.h>

#include <gtest/gtest.h>

namespace muster::launcher {
namespace {

const cluster::Secret kOurs("0123456789abcdef0123456789abcdef"), kOther("another secret, of another job...");

struct Sockets {
  Sockets() { EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0); }
  int ends[2];
};

/// Two ends that are connected.
struct Pair {
  explicit Pair(const cluster::Secret& of_node = kOurs, const cluster::Secret& of_rendezvous = kOurs)
      : node(Descriptor(sockets.ends[0]), Channel::Side::node, of_node),
        rendezvous(Descriptor(sockets.ends[1]), Channel::Side::rendezvous, of_rendezvous) {}
  void exchange() {
    for (int i = 0; i < 3; ++i)
      for (auto* end : {&node, &rendezvous}) {
        end->exchange();
        if (auto text = end->receive()) got.push_back(*text);
      }
  }
  Sockets sockets;
  Channel node, rendezvous;
  std::vector<std::string> got;
};

/// What a channel says and hears, through a test that reads and writes the bytes.
struct Tapped {
  Tapped() : channel(Descriptor(sockets.ends[0]), Channel::Side::rendezvous, kOurs), wire(sockets.ends[1]) {}
  std::string read() {
    channel.exchange();
    char bytes[4096];
    const auto size = recv(wire.get(), bytes, sizeof bytes, 0);
    return size > 0 ? std::string(bytes, static_cast<std::size_t>(size)) : "";
  }
  void write(const std::string& bytes) {
    EXPECT_EQ(send(wire.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
    channel.exchange();
  }
  Sockets sockets;
  Channel channel;
  Descriptor wire;
};

TEST(Channel, MessagesArriveInOrderBothWays) {
  Pair pair;
  pair.node.send("a");
  pair.node.send("b");
  pair.rendezvous.send("c");
  EXPECT_FALSE(pair.rendezvous.is_trusted());
  pair.exchange();
  EXPECT_EQ(pair.got, (std::vector<std::string>{"c", "a", "b"}));
  EXPECT_TRUE(pair.rendezvous.is_trusted());
  EXPECT_EQ(pair.node.state(), Channel::State::open);
}

TEST(Channel, WhatWasSentBeforeTheEndIsRead) {
  Sockets sockets;
  Channel node(Descriptor(sockets.ends[0]), Channel::Side::node, kOurs);
  {
    Channel rendezvous(Descriptor(sockets.ends[1]), Channel::Side::rendezvous, kOurs);
    node.exchange();
    rendezvous.send("last");
    rendezvous.exchange();
    EXPECT_EQ(rendezvous.receive(), std::nullopt);
    EXPECT_FALSE(rendezvous.wind_down()) << "the other end has not closed";
  }
  node.exchange();
  EXPECT_EQ(node.receive(), "last");
  EXPECT_EQ(node.receive(), std::nullopt);
  EXPECT_EQ(node.state(), Channel::State::closed);
}

TEST(Channel, AnotherSecretIsNoticedAtBothEnds) {
  Pair pair(kOurs, kOther);
  pair.node.send("a");
  pair.rendezvous.send("b");
  pair.exchange();
  EXPECT_TRUE(pair.got.empty());
  EXPECT_EQ(pair.node.state(), Channel::State::forged);
  EXPECT_EQ(pair.rendezvous.state(), Channel::State::forged);
}

TEST(Channel, AMessageIsTakenOnceAndFromTheOtherEndOnly) {
  // What one connection has sent is no message of another one, nor is it one again.
  Tapped first, second;
  const auto of_first = first.read(), of_second = second.read();
  Sockets sockets;
  Channel node(Descriptor(sockets.ends[0]), Channel::Side::node, kOurs);
  const Descriptor wire(sockets.ends[1]);
  send(wire.get(), of_first.data(), of_first.size(), 0);
  node.send("a");
  node.exchange();
  EXPECT_EQ(node.receive(), std::nullopt);
  char bytes[4096];
  const auto size = recv(wire.get(), bytes, sizeof bytes, 0);
  const std::string sent(bytes, static_cast<std::size_t>(size));
  const auto message = sent.substr(of_first.size());
  EXPECT_FALSE(message.empty());
  first.write(sent);
  EXPECT_EQ(first.channel.receive(), "a");
  first.write(message);
  EXPECT_EQ(first.channel.receive(), std::nullopt);
  EXPECT_EQ(first.channel.state(), Channel::State::forged) << "a message came twice";
  second.write(sent);
  EXPECT_EQ(second.channel.receive(), std::nullopt);
  EXPECT_EQ(second.channel.state(), Channel::State::forged) << "a message of another connection";
  send(wire.get(), message.data(), message.size(), 0);
  node.exchange();
  EXPECT_EQ(node.receive(), std::nullopt);
  EXPECT_EQ(node.state(), Channel::State::forged) << "its own message came back";
}

TEST(Channel, OtherProtocolsAreStrangers) {
  for (const std::string& bytes : {std::string("GET / HTTP/1.1\r\n\r\n"), std::string(100, '\0')}) {
    Tapped tapped;
    tapped.write(bytes);
    EXPECT_EQ(tapped.channel.receive(), std::nullopt);
    EXPECT_EQ(tapped.channel.state(), Channel::State::stranger);
  }
  Tapped tapped;
  tapped.write("muster rendezvous 1 0123456789abcdef0123456789abcdef" + std::string("\x7f\0\0\0", 4));
  EXPECT_EQ(tapped.channel.receive(), std::nullopt);
  EXPECT_EQ(tapped.channel.state(), Channel::State::stranger) << "a message of 2 GB";
}

TEST(Messages, AreReadAsTheyWereWritten) {
  const auto join = decode_node_message(encode(NodeMessage(
      Join{"alpha", 3, {.command = "c", .digest = "d", .max_restarts = 2, .nodes = "1:4", .processes = 8}})));
  const auto& entry = std::get<Join>(join);
  EXPECT_EQ(entry.host + entry.config.command + entry.config.digest + entry.config.nodes, "alphacd1:4");
  EXPECT_EQ(entry.node_rank * 100 + entry.config.max_restarts * 10 + entry.config.processes, 328);
  EXPECT_TRUE(std::holds_alternative<Ready>(decode_node_message(encode(NodeMessage(Ready{})))));
  const auto round = decode_rendezvous_message(encode(RendezvousMessage(StartRound{"a", 1, "n", 2, 3, 4, 5})));
  EXPECT_EQ(std::get<StartRound>(round).start, 5);
  const auto note = decode_rendezvous_message(encode(RendezvousMessage(Note{"no \xff UTF-8"})));
  EXPECT_EQ(std::get<Note>(note).line, "no \xef\xbf\xbd UTF-8");
  for (const char* text : {"", "{}", "[]", R"({"kind":99,"body":{}})", R"({"kind":0,"body":{}})", R"({"kind":"x"})"})
    EXPECT_ANY_THROW(decode_node_message(text)) << text;
}

}  // namespace
}  // namespace muster::launcher
