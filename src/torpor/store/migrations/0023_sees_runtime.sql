-- Whether the runtime answers this controller. One that gets no answer ends its life if another member does get one.
ALTER TABLE controllers ADD COLUMN sees_runtime boolean NOT NULL DEFAULT false;
