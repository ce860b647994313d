"""The workers of a cluster and of a job: who is connected, admitted, refused or excluded."""
