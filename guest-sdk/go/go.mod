module event-host.dev/sdk

go 1.27.0
