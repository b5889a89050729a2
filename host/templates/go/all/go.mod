module handler

go 1.27.0

require event-host.dev/sdk v{{sdk_version}}

replace event-host.dev/sdk => ./event-host
