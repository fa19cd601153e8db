// Sets the runs of the demo side by side, draws their loss curves and fails when the accuracy is short.
// usage: fashion_mnist_report OUT.svg LEAST_ACCURACY NAME=CURVE...   (the first one is what the others are compared with)
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

namespace {

struct Point {
  double samples, seconds, loss;
};
struct Run {
  std::string name;
  std::vector<Point> points;
  double samples = 0, seconds = 0, accuracy = -1;
  double rate() const { return samples / seconds; }
};

Run read_run(const std::string& argument) {
  const auto equals = argument.find('=');
  Run run{argument.substr(0, equals), {}, 0, 0, -1};
  std::ifstream file(argument.substr(equals + 1));
  for (std::string line; std::getline(file, line);) {
    std::istringstream fields(line);
    if (line.rfind("total ", 0) == 0) {
      fields.ignore(6);
      fields >> run.samples >> run.seconds >> run.accuracy;
    } else if (Point p{}; fields >> p.samples >> p.seconds >> p.loss) {
      run.points.push_back(p);
    }
  }
  return run;
}

// A running mean over 20 points, so that the eye sees the trend.
std::vector<Point> smooth(const std::vector<Point>& points) {
  std::vector<Point> result;
  double mean = points.empty() ? 0 : points.front().loss;
  for (const auto& p : points) {
    mean += (p.loss - mean) / 20;
    result.push_back({p.samples, p.seconds, mean});
  }
  return result;
}

constexpr double kWidth = 720, kHeight = 400, kLeft = 60, kRight = 700, kTop = 50, kBottom = 350;
constexpr const char* kColours[] = {"#4269d0", "#efb118", "#ff725c", "#6cc5b0"};

double across(double seconds, double longest) { return kLeft + (kRight - kLeft) * seconds / longest; }
double down(double loss, double largest) { return kBottom - (kBottom - kTop) * std::min(loss, largest) / largest; }

void draw_axes(std::ostream& out, double longest, double largest) {
  for (int i = 0; i <= 5; ++i) {
    const double x = across(longest * i / 5, longest), y = down(largest * i / 5, largest);
    out << "<line x1='" << kLeft << "' x2='" << kRight << "' y1='" << y << "' y2='" << y << "' stroke='#ddd'/>"
        << "<text x='" << kLeft - 8 << "' y='" << y + 4 << "' text-anchor='end'>" << largest * i / 5 << "</text>"
        << "<text x='" << x << "' y='" << kBottom + 18 << "' text-anchor='middle'>" << std::round(longest * i / 5)
        << "</text>\n";
  }
  out << "<text x='" << (kLeft + kRight) / 2 << "' y='" << kHeight - 10 << "' text-anchor='middle'>seconds</text>"
      << "<text x='16' y='" << kTop - 12 << "'>training loss</text>\n";
}

void draw_run(std::ostream& out, const Run& run, int index, double longest, double largest) {
  out << "<polyline fill='none' stroke-width='2' stroke='" << kColours[index % 4] << "' points='";
  for (const auto& p : smooth(run.points)) {
    out << across(p.seconds, longest) << ',' << down(p.loss, largest) << ' ';
  }
  out << "'/>\n<text font-weight='bold' text-anchor='end' x='" << kRight << "' y='" << kTop + 10 + 18 * index
      << "' fill='" << kColours[index % 4] << "'>" << run.name << "</text>\n";
}

// False when it could not be written.
bool draw(const std::string& path, const std::vector<Run>& runs) {
  double longest = 1;
  for (const auto& run : runs) {
    longest = std::max(longest, run.seconds);
  }
  std::ofstream out(path);
  out << "<svg xmlns='http://www.w3.org/2000/svg' width='" << kWidth << "' height='" << kHeight
      << "' font-family='sans-serif' font-size='12'><rect width='100%' height='100%' fill='white'/>\n";
  draw_axes(out, longest, 1.0);
  for (std::size_t i = 0; i < runs.size(); ++i) {
    draw_run(out, runs[i], static_cast<int>(i), longest, 1.0);
  }
  out << "</svg>\n";
  out.close();
  return out.good();
}

bool good(const Run& run, double least) {
  if (run.accuracy < least) {
    std::cout << "FAILED: " << run.name << ": expected a test accuracy of at least " << least << ", found "
              << (run.accuracy < 0 ? std::string("no finished run") : std::to_string(run.accuracy)) << '\n';
    return false;
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::cerr << "usage: fashion_mnist_report OUT.svg LEAST_ACCURACY NAME=CURVE...\n";
    return 2;
  }
  std::vector<Run> runs;
  for (int i = 3; i < argc; ++i) {
    runs.push_back(read_run(argv[i]));
  }
  std::printf("\n%-34s %9s %12s %10s %9s\n", "", "accuracy", "samples/s", "seconds", "speed-up");
  for (const auto& run : runs) {
    std::printf("%-34s %8.2f%% %12.0f %10.1f %8.2fx\n", run.name.c_str(), 100 * run.accuracy, run.rate(), run.seconds,
                run.rate() / runs.front().rate());
  }
  if (!draw(argv[1], runs)) {
    std::cout << "FAILED: the loss curves cannot be written to " << argv[1] << '\n';
    return 1;
  }
  std::cout << "loss curves: " << argv[1] << '\n';
  const double least = std::atof(argv[2]);
  return std::all_of(runs.begin(), runs.end(), [&](const Run& run) { return good(run, least); }) ? 0 : 1;
}
