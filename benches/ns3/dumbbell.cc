// The dumbbell of dumbbell.yaml in ns-3: 4 senders of 4 TCP flows each, one 10 Gb/s link, 4 receivers.
//
// Prints: packet-hops, seconds of processor time, bits a second that the receivers got. A hop is a packet that has
// crossed a link, acknowledgements included, as Plimsoll's simulator counts them.

#include <ctime>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "ns3/applications-module.h"
#include "ns3/core-module.h"
#include "ns3/internet-module.h"
#include "ns3/network-module.h"
#include "ns3/point-to-point-module.h"
#include "ns3/traffic-control-module.h"

using namespace ns3;

static uint64_t hops = 0;

static void Crossed(Ptr<const Packet>) { ++hops; }

int main(int argc, char **argv) {
    const double seconds = argc > 1 ? std::atof(argv[1]) : 0.1;
    const uint32_t senders = 4, flows = 4;

    Config::SetDefault("ns3::TcpL4Protocol::SocketType", StringValue("ns3::TcpCubic"));
    Config::SetDefault("ns3::TcpSocket::SegmentSize", UintegerValue(1448));
    Config::SetDefault("ns3::TcpSocket::SndBufSize", UintegerValue(6 << 20));
    Config::SetDefault("ns3::TcpSocket::RcvBufSize", UintegerValue(6 << 20));
    Config::SetDefault("ns3::TcpSocket::InitialCwnd", UintegerValue(10));
    Config::SetDefault("ns3::TcpSocketBase::MinRto", TimeValue(MilliSeconds(200)));

    NodeContainer left(1), right(1), from(senders), to(senders);
    NodeContainer all(left, right, from, to);
    InternetStackHelper().Install(all);

    PointToPointHelper access, core;
    access.SetDeviceAttribute("DataRate", StringValue("10Gbps"));
    access.SetChannelAttribute("Delay", StringValue("5us"));
    access.SetQueue("ns3::DropTailQueue", "MaxSize", StringValue("1514000B"));
    core.SetDeviceAttribute("DataRate", StringValue("10Gbps"));
    core.SetChannelAttribute("Delay", StringValue("20us"));
    core.SetQueue("ns3::DropTailQueue", "MaxSize", StringValue("1000000B"));

    Ipv4AddressHelper addresses;
    std::vector<Ipv4Address> sinks;
    auto join = [&](PointToPointHelper &link, Ptr<Node> a, Ptr<Node> b, const std::string &net) {
        NetDeviceContainer devices = link.Install(a, b);
        addresses.SetBase(net.c_str(), "255.255.255.0");
        Ipv4InterfaceContainer ends = addresses.Assign(devices);
        TrafficControlHelper plain;
        plain.Uninstall(devices);
        return ends.GetAddress(1);
    };
    join(core, left.Get(0), right.Get(0), "10.0.0.0");
    for (uint32_t n = 0; n < senders; ++n) {
        join(access, from.Get(n), left.Get(0), "10.1." + std::to_string(n) + ".0");
        sinks.push_back(join(access, right.Get(0), to.Get(n), "10.2." + std::to_string(n) + ".0"));
    }
    Ipv4GlobalRoutingHelper::PopulateRoutingTables();

    ApplicationContainer receivers;
    for (uint32_t n = 0; n < senders; ++n) {
        for (uint32_t flow = 0; flow < flows; ++flow) {
            const uint16_t port = 5000 + flow;
            PacketSinkHelper sink("ns3::TcpSocketFactory", InetSocketAddress(Ipv4Address::GetAny(), port));
            receivers.Add(sink.Install(to.Get(n)));
            BulkSendHelper bulk("ns3::TcpSocketFactory", InetSocketAddress(sinks[n], port));
            bulk.SetAttribute("SendSize", UintegerValue(65536));
            bulk.Install(from.Get(n));
        }
    }
    Config::ConnectWithoutContext("/NodeList/*/DeviceList/*/$ns3::PointToPointNetDevice/PhyRxEnd",
                                  MakeCallback(&Crossed));

    Simulator::Stop(Seconds(seconds));
    const std::clock_t begun = std::clock();
    Simulator::Run();
    const double spent = static_cast<double>(std::clock() - begun) / CLOCKS_PER_SEC;
    uint64_t bytes = 0;
    for (uint32_t n = 0; n < receivers.GetN(); ++n) {
        bytes += DynamicCast<PacketSink>(receivers.Get(n))->GetTotalRx();
    }
    std::printf("%llu %.6f %.0f\n", static_cast<unsigned long long>(hops), spent, bytes * 8 / seconds);
    Simulator::Destroy();
    return 0;
}
