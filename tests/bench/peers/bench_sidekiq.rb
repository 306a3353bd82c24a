# Sidekiq: its defaults, production mode, no line for each job. Its jobs count themselves as those of
# bench_jobs.py do. Pushes: ruby bench_sidekiq.rb noop|nap COUNT.
Warning[:experimental] = false
require "sidekiq"

url = {url: ENV.fetch("BENCH_URL")}
Sidekiq.configure_client { |config| config.redis = url }
Sidekiq.configure_server do |config|
  config.redis = url
  config.logger.level = Logger::WARN
end

module Counted
  @count = 0
  def self.cells
    @cells ||= IO::Buffer.map(File.open(ENV.fetch("BENCH_COUNTS"), "r+")).tap do |it|
      @place = it.get_value(:u64, 0) + 1  # of this process: an earlier one may have been killed
      it.set_value(:u64, 0, @place)
    end
  end
  def self.add = cells.set_value(:u64, 8 * @place, @count += 1)
end

class Noop
  include Sidekiq::Worker
  def perform = Counted.add
end

class Nap
  include Sidekiq::Worker
  def perform
    sleep 0.01
    Counted.add
  end
end

if $0 == __FILE__
  name, count = {"noop" => Noop, "nap" => Nap}[ARGV[0]], ARGV[1].to_i
  (count / 1000.0).ceil.times { Sidekiq::Client.push_bulk("class" => name, "args" => [[]] * 1000) }
end
