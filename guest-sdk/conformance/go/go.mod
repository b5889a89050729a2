module conformance

go 1.27.0

require event-host.dev/sdk v0.1.0

replace event-host.dev/sdk => ../../go
