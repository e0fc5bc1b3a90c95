package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

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

func TestTheProgramWorksUntilSIGTERM(t *testing.T) {
	server := tidegatetest.Start(t)
	program := filepath.Join(t.TempDir(), "tenants")
	if output, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, output)
	}
	command := exec.Command(program)
	command.Env = append(os.Environ(), "TIDEGATE_URL="+server.Client.URL(), "TIDEGATE_TOKEN=")
	command.Stderr = os.Stderr
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = command.Process.Kill() })
	job, err := enqueue(t.Context(), server.Client, File{"small", "one"})
	for end := time.Now().Add(20 * time.Second); err != nil && time.Now().Before(end); {
		time.Sleep(50 * time.Millisecond) // the program has not created the type yet
		job, err = enqueue(t.Context(), server.Client, File{"small", "one"})
	}
	var result map[string]int
	if err == nil {
		err = job.Result(t.Context(), 20*time.Second, &result)
	}
	if err != nil || result["rows"] != 3 {
		t.Fatalf("%v %v", result, err)
	}
	if err := command.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := command.Wait(); err != nil {
		t.Error(err)
	}
}
