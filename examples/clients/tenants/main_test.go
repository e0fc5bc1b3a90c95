package main

import (
	"fmt"
	"testing"

	tidegate "github.com/tidegate/tidegate/clients/go"
	"github.com/tidegate/tidegate/clients/go/tidegatetest"
)

func TestASmallTenantDoesNotWaitForALargeOne(t *testing.T) {
	server := tidegatetest.Start(t)
	worker, err := newWorker(server.Client)
	if err != nil {
		t.Fatal(err)
	}
	server.Apply(worker)
	var files []tidegate.NewJob
	for n := range 100 {
		files = append(files, tidegate.NewJob{Type: "import", Data: File{"large", fmt.Sprint(n)}})
	}
	if _, err := server.Client.EnqueueMany(t.Context(), files, ""); err != nil {
		t.Fatal(err)
	}
	if _, err := enqueue(t.Context(), server.Client, File{"small", "one"}); err != nil {
		t.Fatal(err)
	}
	runs := server.Drain(worker)
	if len(runs) != 101 {
		t.Fatalf("%d runs", len(runs))
	}
	for place, run := range runs {
		if string(run.Data) == `{"tenant":"small","name":"one"}` {
			if place > 1 {
				t.Errorf("the small tenant is number %d", place+1)
			}
			return
		}
	}
	t.Error("the small tenant has no run")
}
