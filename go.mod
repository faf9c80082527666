module github.com/ebb-offload/ebb

go 1.26
