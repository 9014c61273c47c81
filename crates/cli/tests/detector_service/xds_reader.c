/* Reads a file as XDS's plug-ins do: durin finds its groups by NX_class with the type H5T_C_S1, neggia opens fixed paths
 * and takes masks from contiguous datasets only. Prints rows, columns, images, and the mask's sum. */

#include <hdf5.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(int right, const char *what)
{
    if (!right) {
        fprintf(stderr, "%s\n", what);
        exit(1);
    }
}

/* Reads a text attribute into memory of the same size, as a C string. */
static char *attribute(hid_t object, const char *name)
{
    hid_t attribute = H5Aopen(object, name, H5P_DEFAULT);
    check(attribute >= 0, name);
    hid_t file_type = H5Aget_type(attribute), type = H5Tcopy(H5T_C_S1);
    check(H5Tis_variable_str(file_type) == 0, "a text of variable length");
    size_t size = H5Tget_size(file_type);
    char *text = calloc(size + 1, 1);
    H5Tset_size(type, size);
    check(H5Aread(attribute, type, text) >= 0, "a text cannot be read as H5T_C_S1");
    H5Tclose(type);
    H5Tclose(file_type);
    H5Aclose(attribute);
    return text;
}

struct found {
    char data[256], detector[256];
};

static herr_t visit(hid_t root, const char *name, const H5O_info_t *info, void *context)
{
    struct found *found = context;
    if (info->type != H5O_TYPE_GROUP)
        return 0;
    hid_t group = H5Oopen(root, name, H5P_DEFAULT);
    if (H5Aexists(group, "NX_class") > 0) {
        char *class = attribute(group, "NX_class");
        if (strcmp(class, "NXdata") == 0)
            snprintf(found->data, sizeof found->data, "%s", name);
        if (strcmp(class, "NXdetector") == 0)
            snprintf(found->detector, sizeof found->detector, "%s", name);
        free(class);
    }
    H5Oclose(group);
    return 0;
}

static unsigned long long number(hid_t file, const char *path)
{
    unsigned long long value = 0;
    hid_t dataset = H5Dopen2(file, path, H5P_DEFAULT);
    check(dataset >= 0, path);
    hid_t type = H5Dget_type(dataset);
    check(H5Tget_class(type) == H5T_INTEGER && H5Tget_size(type) <= 8, path);
    check(H5Dread(dataset, H5T_NATIVE_ULLONG, H5S_ALL, H5S_ALL, H5P_DEFAULT, &value) >= 0, path);
    H5Tclose(type);
    H5Dclose(dataset);
    return value;
}

int main(int count, char **words)
{
    check(count == 2, "usage: xds_reader FILE");
    hid_t file = H5Fopen(words[1], H5F_ACC_RDONLY, H5P_DEFAULT);
    check(file >= 0, "the file cannot be opened");
    struct found found = {"", ""};
    check(H5Ovisit(file, H5_INDEX_NAME, H5_ITER_INC, visit, &found) >= 0, "the file cannot be searched");
    check(strcmp(found.data, "entry/data") == 0, "there is no NXdata");
    check(strcmp(found.detector, "entry/instrument/detector") == 0, "there is no NXdetector");

    hid_t sizes = H5Dopen2(file, "/entry/instrument/detector/x_pixel_size", H5P_DEFAULT);
    double size = 0;
    check(H5Dread(sizes, H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT, &size) >= 0 && size > 0, "no pixel size");
    char *units = attribute(sizes, "units");
    check(strcmp(units, "m") == 0, "the pixel size has other units");
    free(units);

    hid_t frames = H5Dopen2(file, "/entry/data/data_000001", H5P_DEFAULT);
    check(frames >= 0, "there is no data_000001");
    hid_t space = H5Dget_space(frames), properties = H5Dget_create_plist(frames);
    hsize_t dims[3], chunk[3], start[3] = {0, 0, 0}, bytes = 0;
    check(H5Sget_simple_extent_ndims(space) == 3 && H5Sget_simple_extent_dims(space, dims, NULL) == 3, "not three sides");
    check(H5Pget_chunk(properties, 3, chunk) == 3 && chunk[0] == 1 && chunk[1] == dims[1] && chunk[2] == dims[2],
          "a chunk is not an image");
    check(H5Dget_chunk_storage_size(frames, start, &bytes) >= 0 && bytes > 0, "the first image has no chunk");

    hid_t masks = H5Dopen2(file, "/entry/instrument/detector/detectorSpecific/pixel_mask", H5P_DEFAULT);
    check(masks >= 0, "there is no mask");
    hid_t type = H5Dget_type(masks), mask_space = H5Dget_space(masks), mask_properties = H5Dget_create_plist(masks);
    hsize_t sides[2];
    check(H5Tget_class(type) == H5T_INTEGER && H5Tget_size(type) == 4, "the mask does not have 32 bits");
    check(H5Sget_simple_extent_ndims(mask_space) == 2, "the mask does not have two sides");
    H5Sget_simple_extent_dims(mask_space, sides, NULL);
    check(sides[0] == dims[1] && sides[1] == dims[2], "the mask has other sides than the images");
    check(H5Pget_layout(mask_properties) == H5D_CONTIGUOUS, "the mask is not contiguous");
    check(H5Dget_offset(masks) != HADDR_UNDEF, "the mask has no place in the file");
    int *mask = malloc(sides[0] * sides[1] * sizeof *mask);
    check(H5Dread(masks, H5T_NATIVE_INT, H5S_ALL, H5S_ALL, H5P_DEFAULT, mask) >= 0, "the mask cannot be read");
    unsigned long long sum = 0;
    for (hsize_t at = 0; at < sides[0] * sides[1]; at++)
        sum += mask[at];
    unsigned long long images = number(file, "/entry/instrument/detector/detectorSpecific/nimages")
        * number(file, "/entry/instrument/detector/detectorSpecific/ntrigger");
    check(images == dims[0], "the number of images is wrong");
    printf("%llu %llu %llu %llu\n", (unsigned long long)dims[1], (unsigned long long)dims[2], images, sum);
    return 0;
}
