// Runs the flows that scripts/simgrid_flows.py writes with SimGrid (Debian: libsimgrid-dev), and prints their ends:
//     g++ -O2 -std=c++17 scripts/simgrid_flows.cpp -lsimgrid -o simgrid_flows
// Input: hosts, links, flows, bytes/s of a link; for each flow sender, receiver, bytes, number of links, and the links.
#include <simgrid/s4u.hpp>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <vector>
namespace sg = simgrid::s4u;

int main(int argc, char** argv) {
  sg::Engine engine(&argc, argv);
  sg::Engine::set_config("network/model:CM02");      // max-min sharing, without corrections for TCP
  sg::Engine::set_config("network/TCP-gamma:0");
  sg::Engine::set_config("network/crosstraffic:0");  // no acknowledgements
  sg::Engine::set_config("maxmin/precision:1e-9");
  sg::Engine::set_config("surf/precision:1e-12");    // seconds within which events are one
  int hosts, links, flows;
  double rate;
  std::cin >> hosts >> links >> flows >> rate;
  auto* zone = sg::create_full_zone("zone");
  std::vector<sg::Host*> host;
  std::vector<sg::Link*> link;
  for (int i = 0; i < hosts; i++) host.push_back(zone->create_host("h" + std::to_string(i), 1e9));
  for (int i = 0; i < links; i++) link.push_back(zone->create_link("l" + std::to_string(i), rate)->set_latency(0)->seal());
  std::vector<double> end(flows);
  std::vector<std::vector<double>> jobs;
  for (int i = 0, from, to, count, id; i < flows; i++) {
    double bytes;
    std::cin >> from >> to >> bytes >> count;
    std::vector<sg::LinkInRoute> route;
    while (count-- > 0 && std::cin >> id) route.push_back(sg::LinkInRoute(link[id]));
    zone->add_route(host[from]->get_netpoint(), host[to]->get_netpoint(), nullptr, nullptr, route, false);
    jobs.push_back({double(from), double(to), bytes});
  }
  zone->seal();
  for (int i = 0; i < flows; i++)
    sg::Actor::create("flow", host[jobs[i][0]], [&, i] {
      sg::Comm::sendto(host[jobs[i][0]], host[jobs[i][1]], jobs[i][2]);
      end[i] = sg::Engine::get_clock();
    });
  auto begun = std::chrono::steady_clock::now();
  engine.run();
  std::printf("%.3f\n", std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count());
  for (double at : end) std::printf("%.12f\n", at);
}
