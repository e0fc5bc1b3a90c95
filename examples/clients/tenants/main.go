// Command tenants imports files of many tenants. Each gets its turn, and at most two slots of ten, so
// one tenant with a million files delays the others by one file.
// It works until SIGTERM.
package main

import (
	"context"
	"log"

	tidegate "github.com/tidegate/tidegate/clients/go"
	"github.com/tidegate/tidegate/clients/go/api"
)

type File struct {
	Tenant string `json:"tenant"`
	Name   string `json:"name"`
}

var imports = tidegate.NewJobType[File]("import")

func newWorker(client *tidegate.Client) (*tidegate.Worker, error) {
	worker := tidegate.NewWorker(client, tidegate.WorkerOptions{})
	err := worker.Config.Queue("imports", api.QueueConfig{
		Concurrency: tidegate.Ptr(int64(10)), PartitionBy: tidegate.Ptr("tenant"),
		Constraints: []api.Constraint{
			{Name: "tenant", Per: tidegate.Ptr("tenant"), Concurrency: tidegate.Ptr(int64(2))},
		},
	})
	config := tidegate.Settings{"attributes": tidegate.Settings{"tenant": "/tenant"}}
	options := tidegate.HandlerOptions{Concurrency: 10, Queue: "imports", Config: config}
	tidegate.Handle(worker, imports.Name, options, importFile)
	return worker, err
}

func importFile(_ context.Context, file File, job *tidegate.Attempt) (any, error) {
	job.Log(api.LogLevelInfo, "imported", map[string]any{"file": file.Name})
	return map[string]int{"rows": len(file.Name)}, nil
}

// enqueue is what the web application calls.
func enqueue(ctx context.Context, client *tidegate.Client, file File) (*tidegate.Job, error) {
	return imports.Enqueue(ctx, client, file, nil)
}

func main() {
	ctx := context.Background()
	client, err := tidegate.NewClient(tidegate.ClientOptions{})
	if err == nil {
		var worker *tidegate.Worker
		if worker, err = newWorker(client); err == nil {
			if _, err = worker.Apply(ctx); err == nil {
				err = worker.Run(ctx)
			}
		}
	}
	if err != nil {
		log.Fatal(err)
	}
}
