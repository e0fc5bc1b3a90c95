module example.com/my-plugin

go 1.27
