module github.com/tidegate/tidegate/examples/clients/tenants

go 1.24

require github.com/tidegate/tidegate/clients/go v0.1.0

replace github.com/tidegate/tidegate/clients/go => ../../../clients/go
